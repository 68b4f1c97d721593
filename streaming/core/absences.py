"""When a session had no reader at all, told from who joined it and who left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from streaming.core.course import Absence, Facts, Happening, Interruption

BACK_AT_ONCE = timedelta(seconds=10)
"""Whoever is sent to another process and is there within this has not been interrupted."""

OURS = frozenset({"sent_away", "ours", "told_error"})
"""It was the gateway that ended the connection."""

DEATHS = frozenset({"gateway_crash", "runner_lost"})
"""Reasons of a takeover: the former owner had died, or had stopped working on the session."""


def absences_of(facts: Facts, course: Sequence[Happening]) -> tuple[Absence, ...]:
    """The times without a reader, in their order; ``course``: the happenings by time.

    A session of a version that did not note its readers has had one until it was suspended because
    nobody was there.
    """
    watch = _Door()
    for one in course:
        if one.kind == "reader_joined":
            watch.joined(one)
        elif one.kind == "reader_left":
            watch.left(one)
        elif one.kind == "taken_over" and one.told("reason") in DEATHS:
            watch.process_died(one)
        elif one.kind in ("suspended", "cancelled") and one.told("cause") == "client_gone":
            watch.nobody_is_there(one)
    return tuple(watch.absences())


class _Door:
    """Who is in: readers by name, each with the process that it is connected to."""

    def __init__(self) -> None:
        self._inside: dict[str, str] = {}
        self._has_counted = False
        self._away: tuple[datetime, str, int] | None = None
        self._found: list[Absence] = []

    def joined(self, one: Happening) -> None:
        self._has_counted = True
        self._inside[one.told("reader")] = one.told("process")
        if self._away is not None:
            self._close(one.at)

    def left(self, one: Happening) -> None:
        self._has_counted = True
        self._inside.pop(one.told("reader"), None)
        self._maybe_empty(one, one.told("how") or "closed")

    def process_died(self, one: Happening) -> None:
        """It could not note any more that its readers have left."""
        if self._inside:
            gone = one.told("from")
            self._inside = {r: process for r, process in self._inside.items() if process != gone}
            self._maybe_empty(one, "gateway_gone")

    def nobody_is_there(self, one: Happening) -> None:
        """The gateway has said so itself, whoever was counted."""
        self._inside.clear()
        self._maybe_empty(one, "timed_out" if self._has_counted else "closed")

    def absences(self) -> list[Absence]:
        if self._away is not None:
            self._close(None)
        return self._found

    def _maybe_empty(self, one: Happening, how: str) -> None:
        if not self._inside and self._away is None:
            self._away = (one.at, how, one.seq)

    def _close(self, back_at: datetime | None) -> None:
        assert self._away is not None
        left_at, how, seq = self._away
        self._found.append(Absence(left_at=left_at, back_at=back_at, how=how, seq=seq))
        self._away = None


def interruption_of(
    absence: Absence, facts: Facts, of_gateways: Sequence[Interruption]
) -> Interruption | None:
    """The interruption that an absence is; None: nothing was interrupted, or the gateway's end was."""
    back = absence.back_at
    came_back = back is not None and (facts.ended_at is None or back < facts.ended_at)
    if absence.how in ("gateway_gone", "told_error"):  # what lies behind it is one by itself
        return None
    if absence.is_clean and not came_back:
        return None
    if absence.how in OURS:
        if back is not None and back - absence.left_at <= BACK_AT_ONCE:
            return None
        if any(_lies_in(one, absence) for one in of_gateways):
            return None
    return Interruption(
        at=absence.left_at,
        side="reader",
        seq=min(absence.seq, facts.tokens),
        node="",
        cause="client_gone",
        until=back,
    )


def _lies_in(one: Interruption, absence: Absence) -> bool:
    """Whether a gateway's end is why its readers were sent away: that is noted in either order."""
    begin = absence.left_at - BACK_AT_ONCE
    return begin <= one.at and (absence.back_at is None or one.at <= absence.back_at)


def attended_ms(absences: Sequence[Absence], begin: datetime, end: datetime) -> float:
    """How much of a time somebody was there to notice it, in milliseconds.

    Whoever lost the connection because the gateway died, or sent them away, waits for the answer.
    """
    away = timedelta()
    for absence in absences:
        if absence.how == "gateway_gone" or absence.how in OURS:
            continue
        left, back = max(absence.left_at, begin), min(absence.back_at or end, end)
        if back > left:
            away += back - left
    return max((end - begin - away) / timedelta(milliseconds=1), 0.0)
