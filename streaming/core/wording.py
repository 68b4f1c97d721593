"""What happened to a session in plain English: for people who do not build inference engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streaming.core.course import Absence, Facts, Interruption
from streaming.core.outcome import Outcome

HAPPENED: Mapping[str, str] = {
    "engine_oom": "{engine} ran out of memory",
    "engine_ecc": "{engine} had a fault in the memory of its graphics card",
    "engine_crash": "{engine} broke down",
    "engine_frozen": "{engine} stopped answering",
    "engine_overload": "{engine} had more work than it could take",
    "network_reset": "the connection to {engine} broke",
    "network_partition": "the network on the way to {engine} failed",
    "gateway_crash": "the gateway that passed the answer on broke down",
    "gateway_shutdown": "the gateway that passed the answer on was shut down",
    "client_gone": "the reader’s connection was lost",
    "client_stop": "the answer was stopped on request",
    "timeout": "{engine} took too long",
    "content_violation": "{engine} ended the answer because of a content rule",
    "rate_limit": "{engine} refused more work because of a rate limit",
    "unknown": "{engine} failed for a reason that is not known",
    # Not attributed yet: what the stream itself saw.
    "refused": "{engine} could not be reached",
    "connection_reset": "the connection to {engine} broke",
    "closed_early": "{engine} broke off",
    "malformed_event": "{engine} sent something that could not be read",
    "engine_error": "{engine} reported an error",
    "engine_abort": "{engine} gave up",
    "bad_status": "{engine} reported an error",
    "engine_busy": "{engine} had no room",
    "no_first_token": "{engine} did not begin to answer",
    "stalled": "{engine} fell silent",
    "seam_mismatch": "{engine} could not go on without changing what was delivered",
}
"""Each cause as the beginning of a sentence. Others are told as an unknown one, by name."""

CAUSES: Mapping[str, str] = {
    "engine_oom": "Engine ran out of memory",
    "engine_ecc": "Memory fault of a graphics card",
    "engine_crash": "Engine broke down",
    "engine_frozen": "Engine stopped answering",
    "engine_overload": "Engine had too much work",
    "network_reset": "Connection broke",
    "network_partition": "Network failed",
    "gateway_crash": "Gateway broke down",
    "gateway_shutdown": "Gateway was shut down",
    "client_gone": "Reader’s connection was lost",
    "client_stop": "Stopped on request",
    "timeout": "Took too long",
    "content_violation": "Content rule",
    "rate_limit": "Rate limit",
    "unknown": "Not known",
}
"""Each ``attribution.Blame`` in a few words, for lists."""

LEFT: Mapping[str, str] = {
    "closed": "the reader closed the connection",
    "reset": "the reader’s side broke the connection off",
    "timed_out": "the reader’s connection fell silent",
    "stuck": "the reader took nothing more",
    "sent_away": "the reader was asked to connect to another gateway",
    "ours": "the gateway ended the reader’s connection",
    "told_error": "the reader was told that the answer cannot go on for now",
    "ended": "the reader wanted no more",
    "gateway_gone": "the reader lost the connection with its gateway",
}


def cause_in_words(cause: str) -> str:
    """For lists: ``engine_oom`` is "Engine ran out of memory"."""
    return CAUSES.get(cause) or cause.replace("_", " ").capitalize()


def what_happened(one: Interruption, absence: Absence | None = None) -> str:
    """The first clause, without its position: "the engine gpu-3 ran out of memory".

    ``absence``: of its reader, where the interruption is one.
    """
    if one.side == "reader" and absence is not None:
        return LEFT.get(absence.how, LEFT["closed"])
    engine = f"the engine {one.node}" if one.node else "the engine"
    told = HAPPENED.get(one.cause)
    if told is None:
        subject = "the gateway" if one.side == "gateway" else "{engine}"
        told = subject + " failed"
        if one.cause:
            told += f" ({one.cause.replace('_', ' ')})".replace("{", "(").replace("}", ")")
    return told.format(engine=engine)


def at_token(seq: int) -> str:
    return f"after token {seq:,}" if seq > 0 else "before the first token"


def lasting(milliseconds: float) -> str:
    """A duration: "38 ms", "2.4 s", "3 min 20 s", "2 h 5 min"."""
    if milliseconds < 999.5:
        return f"{max(milliseconds, 0):.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def sentence_of(
    facts: Facts,
    outcome: Outcome | None,
    main: Interruption | None,
    interruptions: Sequence[Interruption],
    absences: Sequence[Absence],
) -> str:
    """One sentence, of several clauses; a second one where there was more than one interruption."""
    if main is not None:
        clauses = [f"{_told(main, absences)} {at_token(main.seq)}", _sequel(main, facts, outcome)]
    else:
        clauses = [_without_interruption(facts, outcome, absences)]
    clauses.append(_received(facts))
    told = "; ".join(clause for clause in clauses if clause)
    return f"{told[0].upper()}{told[1:]}.{_others(main, interruptions)}"


def _told(main: Interruption, absences: Sequence[Absence]) -> str:
    absence = next((a for a in absences if a.left_at == main.at), None)
    return what_happened(main, absence)


def _sequel(main: Interruption, facts: Facts, outcome: Outcome | None) -> str:
    if main.until is None:
        return _open(main, facts, outcome)
    if main.side == "reader":
        return (
            f"the reader came back after {lasting((main.until - main.at).total_seconds() * 1000)}"
        )
    if not main.next_node:
        return "the answer was whole by then"
    gap = main.beyond_ms
    if gap is None:
        return f"the answer continued on {main.next_node} while nobody was reading"
    return f"the answer continued on {main.next_node} after {lasting(gap)}"


def _open(main: Interruption, facts: Facts, outcome: Outcome | None) -> str:
    if facts.ended_at is None:
        if outcome is Outcome.LEFT:
            return "its reader has left"
        if facts.state == "suspended":
            return "the answer waits and goes on when its reader comes back"
        return "the answer has not gone on yet"
    if main.side == "reader":
        return "the reader did not come back"
    ends = {
        "abandoned": "the answer was kept, and nobody came back for it in time"
        if not facts.error_code
        else "the answer was kept for its reader, and not finished in time",
        "cancelled": "the answer was ended because nobody read it any more",
        "stopped": "the answer was stopped before it could go on",
    }
    return ends.get(facts.state, "the answer could not be continued")


def _without_interruption(
    facts: Facts, outcome: Outcome | None, absences: Sequence[Absence]
) -> str:
    if outcome is Outcome.LEFT:
        if not absences:
            return f"the reader left {at_token(facts.tokens)} and did not come back"
        last = absences[-1]
        how = LEFT.get(last.how, LEFT["closed"])
        return f"{how} {at_token(min(last.seq, facts.tokens))} and did not come back"
    if facts.state == "stopped":
        return f"the answer was stopped on request {at_token(facts.tokens)}"
    if facts.state == "failed":
        code = facts.error_code.replace("_", " ") or "no reason was noted"
        return f"the request was refused before an answer began ({code})"
    if facts.state == "cancelled":
        return f"the answer was ended {at_token(facts.tokens)} because nobody read it any more"
    if facts.state == "suspended":
        return f"the answer waits {at_token(facts.tokens)} and goes on when its reader comes back"
    if facts.state == "abandoned":
        return f"the answer waited {at_token(facts.tokens)}, and nobody came back for it in time"
    if facts.ended_at is None:
        return "the answer is being written, and nothing has interrupted it"
    return "the answer came without interruption"


def _received(facts: Facts) -> str:
    tokens, delivered = max(facts.tokens, 0), max(facts.delivered, 0)
    if facts.ended_at is None:
        return f"the reader has received {delivered:,} of the {_tokens(tokens)} so far"
    if tokens == 0:
        received = "the reader received nothing"
    elif delivered >= tokens:
        received = "the reader received " + (
            f"all {_tokens(tokens)}" if tokens > 1 else "the one token that there was"
        )
    else:
        received = f"the reader received {delivered:,} of {_tokens(tokens)}"
    if facts.charged is None:
        return f"{received} and has not been charged yet"
    charged = f"{facts.charged:,}" if facts.charged else "nothing"
    return f"{received} and was charged for {charged}"


def _tokens(count: int) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"


def _others(main: Interruption | None, interruptions: Sequence[Interruption]) -> str:
    others = [one for one in interruptions if one is not main]
    if not others:
        return ""
    noticed = sum(one.noticed for one in others)
    if len(others) == 1:
        tail = "" if noticed else ", too short to be noticed"
        return f" It was interrupted once more{tail}."
    tail = (
        f", {noticed} of them long enough to be noticed"
        if noticed
        else ", each too short to be noticed"
    )
    return f" It was interrupted {len(others):,} more times{tail}."
