"""What the time line of a session shows: stretches of time, with an order in them. Pure.

Clocks of several processes have written what this is made of, and some of it may be missing: ends
before beginnings are pulled straight, and what still goes on ends now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from streaming.admin.words import (
    ENDS,
    GRADES,
    LEAVINGS,
    UP_TO_TERMINAL,
    duration,
    milliseconds,
    sentence,
    word,
)
from streaming.core.course import Facts, Happening, Interruption, Story, Try

MOST_TRIES = 40
MOST_VISITS = 60
MOST_PINGS = 12
"""In one silence; it is said how many more there were."""
MOST_MOMENTS = 120
"""Events that are drawn."""

ON_THE_LINE = frozenset(
    {"suspended", "taken_over", "moving", "hedged", "engine_silent", "answer_long", *UP_TO_TERMINAL}
)
"""Kinds of events that are drawn as such; the others are seen in bars and gaps."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The answer was durable up to token ``seq`` at ``at``, by ``attempt``."""

    at: datetime
    seq: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Paces:
    """How often a silent reader hears from the gateway, in seconds."""

    keepalive: float
    recovering: float


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt on its node; ``first``: its first token."""

    attempt: Try
    start: datetime
    first: datetime | None
    end: datetime
    runs: bool

    @property
    def tokens(self) -> str:
        """``413–733``; empty when it produced none that counted, or none is known yet."""
        first, last = self.attempt.first_seq, self.attempt.last_seq
        return "" if first is None or last is None else f"{first}–{last}"

    @property
    def failed(self) -> bool:
        return self.attempt.end_reason not in ("", "finished", "cancelled", "overtaken", "migrated")


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without tokens; ``open``: it never ended."""

    interruption: Interruption
    start: datetime
    end: datetime
    open: bool

    @property
    def words(self) -> str:
        """How long the reader waited, beyond the usual pace where that is known."""
        if self.open:
            return "never went on"
        beyond = self.interruption.beyond_ms
        if beyond is None:
            return duration(self.end - self.start)
        return milliseconds(beyond) if beyond >= 0.5 else "no wait"


@dataclass(frozen=True, slots=True)
class Presence:
    """A reader's connection, or (``how``: in what way it left) a time without any."""

    start: datetime
    end: datetime
    open: bool
    how: str = ""


@dataclass(frozen=True, slots=True)
class Silence:
    """Pings that were due to a reader: the first few, and how many there were in all."""

    pings: tuple[datetime, ...]
    count: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table that says what the picture shows; ``until``: None: a moment."""

    at: datetime
    until: datetime | None
    what: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. ``visits_known``: connections of readers were noted; else they are not drawn.

    ``cursors``: up to which token a reader had the answer, and when that was known.
    """

    start: datetime
    end: datetime
    is_over: bool
    bars: tuple[Bar, ...]
    left_out: int
    gaps: tuple[Gap, ...]
    visits: tuple[Presence, ...]
    visits_known: bool
    absences: tuple[Presence, ...]
    silences: tuple[Silence, ...]
    marks: tuple[Mark, ...]
    cursors: tuple[tuple[datetime, int], ...]
    moments: tuple[Happening, ...]
    tokens: int
    delivered: int

    @property
    def quiet(self) -> list[tuple[datetime, datetime]]:
        """When no attempt ran."""
        quiet, at = [], self.start
        for bar in sorted(self.bars, key=lambda bar: bar.start):
            if bar.start > at:
                quiet.append((at, bar.start))
            at = max(at, bar.end)
        return [*quiet, (at, self.end)] if at < self.end else quiet

    def rows(self) -> list[Row]:
        """What is drawn, in the order of time."""
        rows = [Row(bar.start, bar.end, _of_bar(bar)) for bar in self.bars]
        rows += [Row(gap.start, gap.end, _of_gap(gap)) for gap in self.gaps]
        rows += [Row(one.start, one.end, "A reader was connected.") for one in self.visits]
        rows += [Row(one.start, one.end, _of_absence(one)) for one in self.absences]
        rows += [
            Row(one.start, one.end, f"{signs_of_life(one.count)} due to the reader.")
            for one in self.silences
        ]
        rows += [Row(event.at, None, sentence(event)) for event in self.moments]
        return sorted(rows, key=lambda row: row.at)


def picture_of(
    facts: Facts, story: Story, marks: Sequence[Mark], *, now: datetime, paces: Paces
) -> Picture:
    """A session as far as ``now``."""
    known = [facts.created_at, *(happening.at for happening in facts.happenings)]
    known += [mark.at for mark in marks]
    for one in facts.tries:
        known += [at for at in (one.started_at, one.first_token_at, one.ended_at) if at]
    known += [at for at in (facts.first_token_at, facts.ended_at) if at]
    start = min(known)
    end = max([*known] if facts.ended_at else [*known, now])
    tries = facts.tries[-MOST_TRIES:]
    bars = tuple(_bar(one, marks, end, facts.ended_at is not None) for one in tries)
    gaps = tuple(
        Gap(
            one,
            _within(_silent_since(one, facts.tries), start, end),
            _upto(one.at, _went_on(one, facts.tries), end),
            one.until is None,
        )
        for one in story.interruptions[-MOST_TRIES:]
        if one.side != "reader"
    )
    absences = tuple(
        Presence(
            _within(one.left_at, start, end), _upto(one.left_at, one.back_at, end),
            one.back_at is None, one.how,
        )
        for one in story.absences[-MOST_VISITS:]
    )  # fmt: skip
    visits, visits_known = _visits(facts, absences, end)
    ordered = sorted(marks, key=lambda mark: (mark.seq, mark.at))
    return Picture(
        start=start,
        end=end,
        is_over=facts.ended_at is not None,
        bars=bars,
        left_out=len(facts.tries) - len(tries),
        gaps=gaps,
        visits=visits,
        visits_known=visits_known,
        absences=absences,
        silences=tuple(_silences(facts, gaps, absences, end, paces)),
        marks=tuple(ordered),
        cursors=_cursors(facts),
        moments=tuple(e for e in facts.happenings if e.kind in ON_THE_LINE)[-MOST_MOMENTS:],
        tokens=max([facts.tokens, *(mark.seq for mark in marks)]),
        delivered=facts.delivered,
    )


def _silent_since(one: Interruption, tries: Sequence[Try]) -> datetime:
    """When the last token before it was there: an engine may be silent for long before it is noticed."""
    last = [
        token_at
        for attempt in tries
        if attempt.last_seq is not None
        and attempt.last_seq <= one.seq
        and (token_at := _last_token_at(attempt)) is not None
    ]
    return min(max(last, default=one.at), one.at)


def _went_on(one: Interruption, tries: Sequence[Try]) -> datetime | None:
    """When the next token was there. A reader may have had to wait for longer, in an absence."""
    if one.until is None:
        return None
    first = [
        attempt.first_token_at
        for attempt in tries
        if attempt.first_token_at is not None and (attempt.first_seq or 0) > one.seq
    ]
    return min([one.until, *(token_at for token_at in first if token_at >= one.at)])


def _last_token_at(one: Try) -> datetime | None:
    """As the log tells; when that was purged, as long before the end as it took to notice it."""
    if one.last_token_at is not None or one.ended_at is None or one.detection_ms is None:
        return one.last_token_at
    return one.ended_at - timedelta(milliseconds=max(one.detection_ms, 0.0))


def _within(at: datetime, start: datetime, end: datetime) -> datetime:
    return min(max(at, start), end)


def _upto(at: datetime, until: datetime | None, end: datetime) -> datetime:
    return max(min(at, end), min(until or end, end))


def _bar(one: Try, marks: Sequence[Mark], end: datetime, is_over: bool) -> Bar:
    stop = max(one.ended_at or end, one.started_at)
    # Of one that runs the first token is in the log only.
    first = one.first_token_at or min(
        (mark.at for mark in marks if mark.attempt == one.number), default=None
    )
    if first is not None:
        first = _within(first, one.started_at, stop)
    return Bar(one, one.started_at, first, stop, one.ended_at is None and not is_over)


def _visits(
    facts: Facts, absences: Sequence[Presence], end: datetime
) -> tuple[tuple[Presence, ...], bool]:
    """When there was a reader, several at the same time as one; and whether that was noted.

    Where the story knows that nobody was there, nobody was: a process that has died could not note
    that its readers had gone.
    """
    comings: dict[str, datetime] = {}
    visits: list[tuple[datetime, datetime, bool]] = []
    known = False
    for event in sorted(facts.happenings, key=lambda event: event.at):
        reader = str(event.data.get("reader"))
        if event.kind == "reader_joined":
            known = True
            comings.setdefault(reader, event.at)
        elif event.kind == "reader_left" and reader in comings:
            visits.append((comings.pop(reader), event.at, False))
    # Who has not left before the end has had it, or is still there.
    visits += [(came, max(end, came), True) for came in comings.values()]
    merged: list[Presence] = []
    for came, left, stays in sorted(visits):
        if merged and came <= merged[-1].end:
            former = merged.pop()
            merged.append(Presence(former.start, max(former.end, left), former.open or stays))
        else:
            merged.append(Presence(came, left, stays))
    for away in absences:
        merged = [part for visit in merged for part in _without(visit, away)]
    return tuple(merged[-MOST_VISITS:]), known


def _without(visit: Presence, away: Presence) -> list[Presence]:
    """What of a visit is not in an absence."""
    if away.end <= visit.start or away.start >= visit.end:
        return [visit]
    parts = []
    if visit.start < away.start:
        parts.append(Presence(visit.start, away.start, False))
    if away.end < visit.end:
        parts.append(Presence(away.end, visit.end, visit.open))
    return parts


def _silences(
    facts: Facts, gaps: Sequence[Gap], absences: Sequence[Presence], end: datetime, paces: Paces
) -> list[Silence]:
    """The signs of life that were due while no token came and somebody was there to read.

    A comment whenever nothing was sent for ``keepalive``; from the moment in which the answer is
    being recovered a ping, and one every ``recovering``. When they were sent is not stored.
    """
    stretches = [(gap.start, gap.end) for gap in gaps]
    stretches.append((facts.created_at, _upto(facts.created_at, facts.first_token_at, end)))
    troubles = [e.at for e in facts.happenings if e.kind in ("recovering", "taken_over")]
    silences = []
    for start, stop in sorted(stretches):
        trouble = min((at for at in troubles if start <= at < stop), default=stop)
        due = _every(paces.keepalive, start, trouble, at_once=False)
        due_then = _every(paces.recovering, trouble, stop, at_once=True)
        heard = [at for at in (*due[0], *due_then[0]) if not _absent(at, absences)]
        if heard:
            unseen = due[1] + due_then[1] - len(due[0]) - len(due_then[0])
            pings = tuple(heard[:MOST_PINGS])
            silences.append(Silence(pings, len(heard) + unseen, start, stop))
    return silences


def _every(
    seconds: float, start: datetime, stop: datetime, *, at_once: bool
) -> tuple[list[datetime], int]:
    """Times from ``start`` to before ``stop``, the first ``MOST_PINGS`` of them, and their number."""
    if seconds <= 0 or stop <= start:
        return [], 0
    count = -((start - stop) // timedelta(seconds=seconds)) - (not at_once)
    first = 0 if at_once else 1
    drawn = range(first, first + min(count, MOST_PINGS))
    return [start + n * timedelta(seconds=seconds) for n in drawn], count


def _absent(at: datetime, absences: Sequence[Presence]) -> bool:
    return any(one.start <= at < one.end for one in absences)


def _cursors(facts: Facts) -> tuple[tuple[datetime, int], ...]:
    known = []
    for event in facts.happenings:
        cursor = event.data.get("cursor") if event.kind == "reader_joined" else None
        if isinstance(cursor, int) and cursor > 0:
            known.append((event.at, cursor))
    return tuple(known[-MOST_VISITS:])


def signs_of_life(count: int) -> str:
    """``3 signs of life``"""
    return f"{count:,} sign{'' if count == 1 else 's'} of life"


def _of_bar(bar: Bar) -> str:
    one = bar.attempt
    joined = f", {word(GRADES, one.grade)}" if one.grade else ""
    tokens = f", tokens {bar.tokens}" if bar.tokens else ""
    return f"Attempt {one.number} on {one.node}{joined}{tokens}: {word(ENDS, one.end_reason)}."


def _of_gap(gap: Gap) -> str:
    one = gap.interruption
    if gap.open:
        return f"No tokens after token {one.seq}: it never went on."
    on = f" on {one.next_node}" if one.next_node else ""
    usual = (
        "" if one.beyond_ms is None else f", {milliseconds(one.beyond_ms)} beyond the usual pace"
    )
    return (
        f"No tokens for {duration(gap.end - gap.start)} after token {one.seq}{usual};"
        f" then it went on{on}."
    )


def _of_absence(one: Presence) -> str:
    back = "Nobody came back." if one.open else "Then it was back."
    return f"No reader: it {word(LEAVINGS, one.how)}. {back}" if one.how else f"No reader. {back}"
