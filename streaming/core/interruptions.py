"""What interrupted a session on the side of engines and gateways, and when that was got over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from streaming.core.absences import DEATHS, attended_ms
from streaming.core.attribution import NO_INTERRUPTIONS
from streaming.core.course import Absence, Facts, Happening, Interruption, Try

MILLISECOND = timedelta(milliseconds=1)
NORMAL_ENDS = frozenset(
    {"", "finished", "cancelled", "overtaken", "rejected", *(c.value for c in NO_INTERRUPTIONS)}
)
"""How attempts end that nothing has interrupted, as far as their ends tell."""

ONE_MOMENT = timedelta(seconds=2)
"""What a takeover notes of attempt and session has one time, but for the clocks of two machines."""

REFUSALS = frozenset(
    {
        "", "context_length_exceeded", "engine_rejected", "invalid_request", "model_not_found",
        "unsupported_parameter", "insufficient_quota", "rate_limit_exceeded", "request_too_large",
    }
)  # fmt: skip
"""Errors for which a request is to blame: where it had no token yet, nothing was interrupted."""


@dataclass(frozen=True, slots=True)
class _End:
    """Something ended abnormally. ``after``: the number of the last attempt that it may have hit.

    ``began``: for a failed attempt without a token, when it began.
    """

    at: datetime
    side: str
    seq: int
    node: str
    cause: str
    after: int
    began: datetime | None = None
    detection_ms: float | None = None
    gateway: str = ""


def interruptions_of(
    facts: Facts, course: Sequence[Happening], absences: Sequence[Absence]
) -> list[Interruption]:
    """Those of engines and gateways, in their order; ``course``: the happenings by time."""
    tries = sorted(facts.tries, key=lambda one: one.number)
    gateways = _of_gateways(facts, tries, course)
    ends = [*_of_engines(tries), *gateways, *_of_errors(facts, tries, course)]
    ends.sort(key=lambda end: (end.after, end.at))
    found = [_followed(end, facts, tries, absences) for end in ends]
    if (last := _of_the_end(facts, tries, found)) is not None:
        found.append(last)
    found = _with_refusal(found, facts)
    return sorted(found, key=lambda one: (one.seq, one.at))


def is_abnormal(one: Try) -> bool:
    """Whether an attempt ended as nobody wanted. One that was overtaken did when its node is blamed
    for it: it was silent because the node does not work."""
    return one.end_reason not in NORMAL_ENDS or (one.end_reason == "overtaken" and one.cause != "")


def is_of_gateway(one: Try) -> bool:
    return one.end_reason in DEATHS or one.cause.startswith("gateway_")


def _of_engines(tries: Sequence[Try]) -> list[_End]:
    return [
        _End(
            at=one.ended_at or one.started_at,
            side="engine",
            seq=_position(tries, one.number),
            node=one.node,
            cause=one.cause or one.end_reason,
            after=one.number,
            began=None if one.is_productive else one.started_at,
            detection_ms=one.detection_ms,
        )
        for one in tries
        if is_abnormal(one) and not is_of_gateway(one) and not _has_no_say(one, tries)
    ]


def _has_no_say(one: Try, tries: Sequence[Try]) -> bool:
    """A hedge that fails by itself, while the attempt that it was to overtake goes on."""
    if one.kind != "hedge" or one.is_productive:
        return False
    at = one.ended_at or one.started_at
    return any(
        other.number < one.number
        and other.started_at <= at
        and (other.ended_at is None or other.ended_at > at)
        for other in tries
    )


def _of_gateways(facts: Facts, tries: Sequence[Try], course: Sequence[Happening]) -> list[_End]:
    """Events and attempts tell of the same death, and a suspension may follow on it: one each."""
    marks = [
        _End(
            at=one.ended_at or one.started_at,
            side="gateway",
            seq=_position(tries, one.number),
            node="",
            cause="gateway_shutdown" if one.cause == "gateway_shutdown" else "gateway_crash",
            after=one.number,
            gateway=str(one.evidence.get("gateway") or ""),
        )
        for one in tries
        if is_abnormal(one) and is_of_gateway(one)
    ]
    for one in course:
        if one.kind == "taken_over" and one.told("reason") in DEATHS:
            cause, gateway = "gateway_crash", one.told("from")
        elif one.kind == "suspended" and one.told("cause").startswith("gateway_"):
            cause, gateway = one.told("cause"), _next_owner_was(course, one)
        else:
            continue
        after = max((t.number for t in tries if t.started_at <= one.at), default=0)
        seq = min(one.seq, facts.tokens)
        marks.append(_End(one.at, "gateway", seq, "", cause, after, gateway=gateway))
    marks.sort(key=lambda mark: mark.at)
    merged: list[_End] = []
    for mark in marks:
        if merged and _is_the_same(merged[-1], mark, tries):
            merged[-1] = _both(merged[-1], mark)
        else:
            merged.append(mark)
    return [_dated(mark, tries) for mark in merged]


def _of_errors(facts: Facts, tries: Sequence[Try], course: Sequence[Happening]) -> list[_End]:
    """Errors that have suspended it and that no failed attempt explains: there was no node for it,
    its log could not be written. A reader that comes back in vain is not interrupted once more."""
    found: dict[tuple[int, int], _End] = {}
    for one in course:
        cause = one.told("cause")
        if one.kind != "suspended" or not one.data.get("error") or cause.startswith("gateway_"):
            continue
        last = max(
            (t for t in tries if t.started_at <= one.at), key=lambda t: t.number, default=None
        )
        if last is not None and is_abnormal(last):
            continue
        number, seq = (0, 0) if last is None else (last.number, min(one.seq, facts.tokens))
        end = _End(
            at=one.at,
            side="engine",
            seq=seq,
            node="" if last is None else last.node,
            cause=cause or "unknown",
            after=number,
            began=facts.created_at if last is None else None,
        )
        found.setdefault((number, seq), end)
    return list(found.values())


def _next_owner_was(course: Sequence[Happening], suspension: Happening) -> str:
    """The process that suspended it: whoever goes on with it says from whom it took over."""
    later = (o for o in course if o.kind == "taken_over" and o.at >= suspension.at)
    return next((one.told("from") for one in later), "")


def _is_the_same(one: _End, other: _End, tries: Sequence[Try]) -> bool:
    if other.at - one.at <= ONE_MOMENT and one.after == other.after:
        return True
    productive = (t for t in tries if t.is_productive and one.after < t.number <= other.after)
    return one.seq == other.seq and not any(productive)


def _both(one: _End, other: _End) -> _End:
    return replace(
        one,
        seq=max(one.seq, other.seq),
        after=max(one.after, other.after),
        gateway=one.gateway or other.gateway,
    )


def _dated(mark: _End, tries: Sequence[Try]) -> _End:
    """A death is noticed late: it happened when the last token had come, at the earliest."""
    last = _last_token(tries, mark.after)
    return mark if last is None or last > mark.at else replace(mark, at=last)


def _followed(
    end: _End, facts: Facts, tries: Sequence[Try], absences: Sequence[Absence]
) -> Interruption:
    """An end with what came after it."""
    result = Interruption(
        at=end.at,
        side=end.side,
        seq=end.seq,
        node=end.node,
        cause=end.cause,
        gateway=end.gateway,
    )
    following = (one for one in tries if one.number > end.after and one.is_productive)
    goes_on = next(following, None)
    if goes_on is not None:
        until = max(goes_on.spoke_at, end.at)
        result = replace(result, until=until, next_node=goes_on.node, grade=goes_on.grade)
    elif facts.state == "completed" and facts.ended_at is not None:
        # Its last token was there already: only that it was the last had still to be said.
        until = max(facts.ended_at, end.at)
        result = replace(result, until=until)
    else:
        joined = next((one.grade for one in tries if one.number > end.after and one.grade), "")
        return replace(result, grade=joined)
    beyond = _beyond(end, goes_on, until, tries, absences)
    return replace(result, beyond_ms=beyond)


def _beyond(
    end: _End,
    goes_on: Try | None,
    until: datetime,
    tries: Sequence[Try],
    absences: Sequence[Absence],
) -> float | None:
    """The time without a token that somebody was there to notice, less the usual pace."""
    begin = end.began or _last_token(tries, end.after) or end.at
    gap = (until - min(begin, until)) / MILLISECOND
    if (
        goes_on is not None
        and goes_on.kind in ("failover", "hedge")
        and end.detection_ms is not None
        and goes_on.recovery_ms is not None
        and _is_first_of_its_chain(end, tries)
    ):
        # By a clock that nobody sets, and without the way to the database.
        gap = max(end.detection_ms, 0.0) + max(goes_on.recovery_ms, 0.0)
    attended = attended_ms(absences, until - gap * MILLISECOND, until)
    if attended <= 0 < gap:
        return None
    return max(attended - pace_ms(tries), 0.0)


def _is_first_of_its_chain(end: _End, tries: Sequence[Try]) -> bool:
    """Whether ``recovery_ms`` of what goes on counts from it: from the first failure since a token."""
    if end.began is None:
        return True
    before = [one for one in tries if one.number < end.after]
    return not before or not is_abnormal(before[-1])


def pace_ms(tries: Sequence[Try]) -> float:
    """The mean time between two tokens of a session; 0: it has not come to two."""
    spent, steps = 0.0, 0
    for one in tries:
        last = _own_last_token(one)
        if one.first_seq is None or one.last_seq is None or last is None:
            continue
        if one.last_seq > one.first_seq and one.first_token_at is not None:
            spent += max((last - one.first_token_at) / MILLISECOND, 0.0)
            steps += one.last_seq - one.first_seq
    return spent / steps if steps else 0.0


def _own_last_token(one: Try) -> datetime | None:
    if one.last_token_at is not None or one.ended_at is None:
        return one.last_token_at
    if is_abnormal(one) and is_of_gateway(one):
        return None  # its end was noted by others, later
    return one.ended_at - max(one.detection_ms or 0.0, 0.0) * MILLISECOND


def _last_token(tries: Sequence[Try], up_to: int) -> datetime | None:
    """When the last token came of the attempts up to this number."""
    for one in reversed(tries):
        if one.number <= up_to and one.is_productive:
            return _own_last_token(one)
    return None


def _position(tries: Sequence[Try], up_to: int) -> int:
    """One without a token of its own broke off where those before it had come to."""
    return max((one.last_seq or 0 for one in tries if one.number <= up_to), default=0)


def _of_the_end(
    facts: Facts, tries: Sequence[Try], found: Sequence[Interruption]
) -> Interruption | None:
    """The failure of a session that no attempt of its own explains."""
    if facts.state != "failed" or any(one.until is None for one in found):
        return None
    if facts.tokens == 0 and facts.error_code in REFUSALS:
        return None
    of_gateway = facts.cause.startswith("gateway_")
    return Interruption(
        at=facts.ended_at or facts.created_at,
        side="gateway" if of_gateway else "engine",
        seq=facts.tokens,
        node="" if of_gateway or not tries else tries[-1].node,
        cause=facts.cause or facts.error_code or "unknown",
    )


def _with_refusal(found: list[Interruption], facts: Facts) -> list[Interruption]:
    """That no seam could be made is the worst grade of all."""
    if facts.error_code != "seam_refused":
        return found
    return [replace(one, grade="refused") if one.until is None else one for one in found]
