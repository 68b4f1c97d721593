"""What courses of diagnostic streams say of the way they came. Pure: seconds in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from gateway_project.doctor.public import Course

HELD_WARNING, HELD_FAILURE = 0.25, 1.0
"""Seconds by which an event comes later than the promptest one."""
LUMP = 0.02
"""Events that come within this time have come together."""
SAME = 1.5
"""Two cuts no further apart than this are the same limit."""
PROXIES = "docs/timeouts.md#the-proxy-in-front"
EXPECTED_HEADERS = ("x-session-id", "x-request-id", "x-server-time")


def held(arrivals: Sequence[tuple[float, float]]) -> float:
    """The longest that an event was kept on the way, in seconds; 0 of fewer than two."""
    delays = [at - sent for sent, at in arrivals]
    return max(delays) - min(delays) if delays else 0.0


def lumps(arrivals: Sequence[tuple[float, float]]) -> int:
    """In how many portions the events have come."""
    count, last = 0, None
    for _, at in arrivals:
        if last is None or at - last > LUMP:
            count += 1
        last = at
    return count


def judge_buffering(course: Course) -> Finding:
    seconds, count = held(course.arrivals), len(course.arrivals)
    if count < 2:
        return failure(
            "buffering",
            f"{count} of the stream's events have come: {course.trouble or 'it ended early'}",
            "Pass server-sent events through as they come.",
            PROXIES,
        )
    seen = f"{count} events in {lumps(course.arrivals)} portions, kept for {seconds * 1000:.0f} ms at most"
    advice = "nginx: proxy_buffering off; elsewhere: no response buffering for /v1/."
    if seconds > HELD_FAILURE:
        return failure("buffering", f"{seen}: readers see answers in lumps", advice, PROXIES)
    if seconds > HELD_WARNING:
        return warning(
            "buffering", seen, f"{advice} A slow network does it too: try from elsewhere.", PROXIES
        )
    return ok("buffering", seen)


def judge_compression(headers: Mapping[str, str]) -> Finding:
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        return failure(
            "compression",
            f"event streams come as {encoding} although they say no-transform: compressors wait for more",
            "No compression of text/event-stream (nginx: not in gzip_types; a CDN: respect no-transform).",
            PROXIES,
        )
    return ok("compression", "none")


def judge_response_headers(headers: Mapping[str, str]) -> Iterator[Finding]:
    missing = [name for name in EXPECTED_HEADERS if name not in headers]
    if missing:
        yield failure(
            "response headers",
            f"taken out on the way: {', '.join(missing)}",
            "Let them through; clients resume by X-Session-Id.",
            "docs/protocol.md",
        )
    else:
        yield ok("response headers", f"{', '.join(EXPECTED_HEADERS)} arrive")
    if "no-transform" not in headers.get("cache-control", ""):
        yield warning(
            "cache-control",
            f"is {headers.get('cache-control') or 'taken out'} on arrival, not `no-cache, no-transform`",
            "Let the gateway's own through: proxies further on go by it.",
            PROXIES,
        )
    if "x-accel-buffering" not in headers:
        yield note(
            "X-Accel-Buffering",
            "does not arrive: nginx takes it for itself",
            "Behind another nginx use proxy_pass_header.",
        )


def judge_request_headers(sent: Mapping[str, str], arrived: Mapping[str, str]) -> Finding:
    """``sent`` and ``arrived``: by name in lower case."""
    lost = [name for name, value in sent.items() if arrived.get(name) != value]
    if lost:
        told = ", ".join(f"{name} ({'changed' if name in arrived else 'gone'})" for name in lost)
        return failure(
            "request headers",
            f"do not reach the gateway as they were sent: {told}",
            "Let them through: readers resume by Last-Event-ID, and retries are told by Idempotency-Key.",
            "docs/protocol.md",
        )
    return ok("request headers", f"{', '.join(sent)} arrive")


def judge_whom(opened: Mapping[str, object], *, is_https: bool, is_local: bool) -> Finding:
    """Whom the gateway takes us for."""
    scheme, client = opened.get("scheme"), str(opened.get("client") or "")
    if is_https and scheme != "https":
        return warning(
            "forwarded",
            f"the gateway takes this https request for {scheme}, from {client}",
            "TRUSTED_PROXIES, and X-Forwarded-Proto and X-Forwarded-For at the proxy: secure cookies and the check of Origin need them.",
            "docs/settings.md",
        )
    if not is_local and client in ("127.0.0.1", "::1"):
        return warning(
            "forwarded",
            "the gateway takes everybody for this machine",
            "TRUSTED_PROXIES, and X-Forwarded-For at the proxy.",
            "docs/settings.md",
        )
    return ok("forwarded", f"the gateway sees {client} by {scheme}")


def judge_cuts(
    silent: Sequence[Course], busy: Course, *, silence: float, longest_answer: float
) -> Iterator[Finding]:
    """``silent``: streams of one silence each. ``busy``: one that never was silent for long.

    ``silence``: what the way must bear (GATEWAY_SILENCE), ``longest_answer``: MAX_ANSWER_SECONDS.
    """
    if any(one.stopped for one in (busy, *silent)):
        yield note("cut-off", "a gateway process was being stopped meanwhile", "Run it again.")
        return
    unopened = [one for one in (busy, *silent) if one.opened is None]
    if unopened:
        why = unopened[0].trouble or f"HTTP {unopened[0].status}"
        yield warning(
            "cut-off",
            f"{len(unopened)} of {len(silent) + 1} streams did not begin: {why}",
            "Run it again when there is less to do; see limits on connections of one client.",
            PROXIES,
        )
    silent = [one for one in silent if one.opened is not None]
    if busy.opened is None or not silent:
        return
    total = None if busy.whole else busy.over
    yield _judge_total(busy, total, longest_answer)
    yield _judge_idle(silent, total, silence)


def _judge_total(busy: Course, total: float | None, longest_answer: float) -> Finding:
    if busy.whole:
        return ok("total cut-off", f"none within {busy.wanted:g} s")
    if total is None:
        return failure(
            "total cut-off",
            f"a stream was forgotten on the way: neither an end nor a cut came, long after its {busy.wanted:g} s",
            "See the proxies in between.",
            PROXIES,
        )
    return failure(
        "total cut-off",
        f"responses are cut after {total:.1f} s, whatever is sent; an answer may take {longest_answer:g} s",
        f"Lift the proxy's limit on a whole response. Where that can't be: PROXY_TOTAL_SECONDS={total:.0f}, "
        f"MAX_CONNECTION_AGE below it, MAX_ANSWER_SECONDS at most that.",
        PROXIES,
    )


def _judge_idle(silent: Sequence[Course], total: float | None, silence: float) -> Finding:
    borne = [one.wanted for one in silent if one.whole]
    cut = [
        one.over - one.last for one in silent
        if not one.whole and one.over is not None and (total is None or one.over < total - SAME)
    ]  # fmt: skip
    forgotten = [one.wanted for one in silent if not one.whole and one.over is None]
    longest = max(borne, default=0.0)
    if cut:
        limit = min(cut)
        seen = f"connections are cut after {limit:.1f} s of silence"
        if limit <= silence:
            return failure(
                "idle cut-off",
                f"{seen}; GATEWAY_SILENCE is {silence:g} s",
                "Raise the proxy's idle limit (nginx: proxy_read_timeout) to 75 s or more.",
                PROXIES,
            )
        return note(
            "idle cut-off",
            seen,
            f"PROXY_IDLE_SECONDS={limit:.0f} lets `manage.py check` compare.",
            PROXIES,
        )
    if forgotten:
        limit = min(forgotten)
        return failure(
            "idle cut-off",
            f"connections that are silent for more than {longest:g} and up to {limit:g} s are forgotten without a word",
            "A firewall or NAT in between: raise its idle limit; KEEPALIVE_SECONDS below it helps until then.",
            PROXIES,
        )
    if not borne:
        return note(
            "idle cut-off",
            "not known: the total cut-off comes first",
            "Lift that one first, then look again.",
            PROXIES,
        )
    return ok("idle cut-off", f"silence of {longest:g} s is borne")


def judge_disconnect(state: str, seconds: float | None, left_after: float) -> Finding:
    """``seconds``: when the gateway noticed; ``left_after``: when the reader left; of one clock each."""
    if state == "left" and seconds is not None:
        late = max(0.0, seconds - left_after)
        seen = f"the gateway noticed a reader that left {late:.1f} s later"
        if late > 3.0:
            return warning(
                "disconnect",
                seen,
                "The proxy should close its connection with the reader's.",
                PROXIES,
            )
        return ok("disconnect", seen)
    if state == "running":
        return failure(
            "disconnect",
            "the gateway does not notice that a reader has left: engines work for nobody",
            "nginx: proxy_ignore_client_abort off; elsewhere: close the upstream connection with the reader's.",
            PROXIES,
        )
    return note("disconnect", "could not be asked: its process was not met again", "Run it again.")


def judge_spread(instances: Mapping[int, int], live: int) -> Finding:
    """``instances``: requests by gateway process. ``live``: processes that live; 0: not known."""
    total = sum(instances.values())
    seen = f"{total} requests met {len(instances)} gateway processes"
    if live > 1 and len(instances) == 1:
        return warning(
            "spread",
            f"{seen}; {live} live",
            "least_conn or round robin over all of them, not by source address.",
            PROXIES,
        )
    return ok("spread", seen)
