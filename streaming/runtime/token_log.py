"""The token log of one session, on the side of the process that owns it.

The runner appends, the journal makes durable, readers see only what is durable. What is kept in
memory is bounded; a reader further behind reads PostgreSQL (``runtime.log_reader``).
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from streaming.conf import conf
from streaming.core.chunks import UNKNOWN_ID, Token
from streaming.core.delivery import Marks
from streaming.core.digest import RunningDigest
from streaming.runtime.records import Record


class LogSlice(NamedTuple):
    """Durable tokens that a reader does not have yet: up to ``last_seq``, with their text.

    ``terminal`` is the record that closes the log; it has a seq of its own, ``last_seq``.
    """

    last_seq: int
    text: str
    terminal: dict[str, Any] | None = None


class Segment(NamedTuple):
    """A run of tokens as it was made durable; ``ends`` are offsets into ``text``, one a token."""

    first_seq: int
    last_seq: int
    text: str
    ends: array[int]
    terminal: dict[str, Any] | None

    def after(self, seq: int, upto: int) -> str:
        """The text of the tokens after ``seq``, up to and including ``upto``."""
        if seq < self.first_seq and upto >= self.last_seq:
            return self.text
        count = len(self.ends)
        begin = min(max(0, seq - self.first_seq + 1), count)
        end = min(upto - self.first_seq + 1, count)
        return self.text[self.ends[begin - 1] if begin else 0 : self.ends[end - 1] if end else 0]


PIECE_CHARS = 4 * 1024
"""How much of a log a reader gets at once, whole segments: it may wait in memory for a slow one."""


def joined(segments: Iterable[Segment], seq: int, limit: int) -> LogSlice:
    """The tokens after ``seq``, up to ``limit`` or to the size of a piece. There must be some."""
    parts: list[Segment] = []
    size = 0
    for segment in segments:
        if segment.last_seq > seq:
            if segment.first_seq > limit or size >= PIECE_CHARS:
                break
            parts.append(segment)
            size += len(segment.text)
    last = parts[-1]
    upto = min(limit, last.last_seq)
    text = "".join(segment.after(seq, upto) for segment in parts)
    return LogSlice(upto, text, last.terminal if upto == last.last_seq else None)


Follow = Callable[[Segment], bool]
"""Takes what has just become durable, if it can at once; says whether it did."""

NO_NEWS = Marks()
"""Of readers; not to be changed."""


@dataclass(slots=True, eq=False)
class Batch:
    """What one session has for one flush: a run of tokens of one attempt, and records besides."""

    log: SessionLog
    segment: Segment
    attempt: int
    token_ids: bytes
    text: bytes
    digest: bytes
    records: list[Record]
    ends_surely: bool = True
    marks: Marks = field(default_factory=Marks)
    """How far readers have come, where that has changed since the flush before."""


@dataclass(slots=True)
class _Run:
    """Tokens appended and not yet handed to the journal; all of one attempt."""

    attempt: int
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    terminal: dict[str, Any] | None = None
    ends_surely: bool = True


NOTES_SECONDS = 0.25
"""How long notes may wait. A node's death makes several for each of its streams, at the moment at
which their readers wait for the first token of the next attempt."""


class LogClosed(RuntimeError):
    """Something was appended after the terminal record, or after the log was lost."""


class SessionLog:
    """An append-only run of tokens 1, 2, 3, …, closed by a terminal record with the next seq.

    The runner is its only producer. ``lost`` is set when this process may no longer write it.
    """

    def __init__(self, session_id: UUID, epoch: int, notify: Callable[[SessionLog], None]) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.last_seq = 0
        """The last token appended (the terminal record included)."""
        self.durable_seq = 0
        """The last one committed to PostgreSQL."""
        self.token_ids: array[int] = array("i")
        """The ids of all tokens appended, for continuations."""
        self.is_stored = False
        """Whether anything is in the database: the first flush brings the session itself."""
        self.ids_known = True
        self.ends_surely = True
        """Whether the last token is known to end a character. Of an event with several ids only the
        engine knows whether the last ones begin another (vLLM merges events when it is busy)."""
        self.closed = False
        self.lost: Exception | None = None
        self.on_lost: Callable[[], object] | None = None
        """Called once when the log is lost: whoever produces for it has to stop."""
        self.stop_requested = False
        self.marks = Marks()
        """How far its readers have come; what is new of it is stored with each flush."""
        self._stored_marks = Marks()
        self._limits = conf()
        self._notify = notify
        self._runs: deque[_Run] = deque()
        self._records: list[Record] = []
        self._pressing = False
        """Whether the records are due. Those of ``note`` wait for a while."""
        self._timer: asyncio.TimerHandle | None = None
        self._digest = RunningDigest()
        self._durable_digest = self._digest.digest()
        self._durable: deque[Segment] = deque()
        self._durable_bytes = 0
        self._waiters: list[tuple[asyncio.Future[None], Follow | None]] = []
        self._unwritten = 0
        self._taken_seq = 0
        self.in_flight = False
        """Whether the journal is writing a batch of this log."""

    def __repr__(self) -> str:
        return (
            f"<SessionLog {self.session_id} epoch {self.epoch}: {self.last_seq} appended, "
            f"{self.durable_seq} durable{', closed' if self.closed else ''}>"
        )

    def continue_from(
        self, token_ids: array[int], digest: RunningDigest, marks: Marks, ends_surely: bool
    ) -> None:
        """Stand where a log stands that was taken over: all of these tokens are durable."""
        self.is_stored = True
        self.ends_surely = ends_surely
        self.token_ids = token_ids
        self.ids_known = UNKNOWN_ID not in token_ids
        self.last_seq = self.durable_seq = self._taken_seq = len(token_ids)
        self.marks, self._stored_marks = marks, marks.copy()
        self._digest = digest

    # The runner's side

    def append(self, tokens: list[Token], attempt: int, *, ends_surely: bool = True) -> None:
        """Add tokens of ``attempt``. Raises ``LogClosed``."""
        ids, texts = [token.id for token in tokens], [token.text for token in tokens]
        self.extend(ids, texts, attempt, ends_surely=ends_surely)

    def extend(
        self, ids: list[int], texts: list[str], attempt: int, *, ends_surely: bool = True
    ) -> None:
        """``append``, with the ids of tokens and their texts in a list each."""
        self._must_be_open()
        run = self._run_of(attempt)
        run.ends_surely = self.ends_surely = ends_surely
        run.ids += ids
        run.texts += texts
        self.token_ids.fromlist(ids)
        if UNKNOWN_ID in ids:
            self.ids_known = False
        self.last_seq += len(ids)
        self._unwritten += len(ids)
        self._notify(self)

    def close(self, terminal: dict[str, Any], attempt: int) -> None:
        """Add the terminal record. Raises ``LogClosed``."""
        self._must_be_open()
        self._run_of(attempt).terminal = terminal
        self.last_seq += 1
        self.closed = True
        self._notify(self)

    def record(self, *records: Record) -> None:
        """Have records written in the same transaction as the tokens appended so far."""
        self._records += records
        self.press()

    def note(self, *records: Record) -> None:
        """Have records written soon: no token waits for them, and no flush is made for them alone
        before ``NOTES_SECONDS`` have passed. Whatever is recorded later takes them along."""
        self._records += records
        if not self._pressing and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTES_SECONDS, self.press)

    def press(self) -> None:
        """Have what was noted written now."""
        self._stop_timer()
        if self._records:
            self._pressing = True
            self._notify(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def unwritten(self) -> int:
        """Tokens appended and not yet durable."""
        return self._unwritten

    def _run_of(self, attempt: int) -> _Run:
        if not self._runs or self._runs[-1].attempt != attempt:
            self._runs.append(_Run(attempt))
        return self._runs[-1]

    def _must_be_open(self) -> None:
        if self.lost is not None:
            raise self.lost
        if self.closed:
            raise LogClosed(f"{self!r} takes nothing more")

    # The journal's side

    @property
    def has_pending(self) -> bool:
        return bool(self._runs) or self._pressing

    def take(self) -> Batch:
        """Hand over what is to be written next: the tokens of one attempt, and all records.

        Records wait for the tokens that were appended before them, so they go with the last run.
        """
        run = self._runs.popleft() if self._runs else _Run(0)
        records: list[Record] = []
        if self._pressing and not self._runs:
            records, self._records = self._records, []
            self._pressing = False
        first = self._taken_seq + 1
        text = "".join(run.texts)
        ends = array("i", accumulate(map(len, run.texts)))
        token_ids = array("i", run.ids).tobytes()
        encoded = text.encode()
        self._digest.update(token_ids, encoded)
        last = first + len(run.ids) - 1 + (run.terminal is not None)
        self._taken_seq = last
        marks = self._marks_to_store()
        return Batch(
            log=self,
            segment=Segment(first, last, text, ends, run.terminal),
            attempt=run.attempt,
            token_ids=token_ids,
            text=encoded,
            digest=self._digest.digest() if last >= first else b"",
            records=records,
            ends_surely=run.ends_surely,
            marks=marks,
        )

    def _marks_to_store(self) -> Marks:
        """What of the marks has changed since they were handed over last."""
        if self.marks == self._stored_marks:  # readers are looked at a few times a second
            return NO_NEWS
        news, self._stored_marks = self.marks.since(self._stored_marks), self.marks.copy()
        return news

    def committed(self, batch: Batch, stop_requested: bool) -> None:
        """``batch`` is durable: readers may have it."""
        self.is_stored = True
        segment = batch.segment
        if segment.last_seq >= segment.first_seq:
            self.durable_seq = segment.last_seq
            self._durable_digest = batch.digest
            self._unwritten -= len(segment.ends)
            self._durable.append(segment)
            self._durable_bytes += len(batch.text)
            limits = self._limits
            while len(self._durable) > 1 and (
                len(self._durable) > limits.log_max_events
                or self._durable_bytes > limits.log_max_bytes
            ):
                self._durable_bytes -= len(self._durable.popleft().text.encode())
        self.stop_requested = self.stop_requested or stop_requested
        self.in_flight = False
        self._give(segment)

    def lose(self, reason: Exception) -> None:
        """This process may not write the log any more, or cannot: ``reason`` says why."""
        first = self.lost is None
        if first:
            self.lost = reason
        self._runs.clear()
        self._records.clear()
        self._pressing = False
        self._stop_timer()
        self.wake()
        if first and self.on_lost is not None:
            self.on_lost()

    def last_words(self, terminal: dict[str, Any]) -> Batch:
        """A batch that closes the log after what is durable, in place of all that was to follow."""
        seq = self.durable_seq + 1
        return Batch(
            log=self,
            segment=Segment(seq, seq, "", array("i"), terminal),
            attempt=1,
            token_ids=b"",
            text=b"",
            digest=self._durable_digest,
            records=[],
        )

    # The readers' side

    @property
    def ends(self) -> bool:
        """Whether its end has come, durable or about to be."""
        return self.closed

    def slice_after(self, seq: int, upto: int | None = None) -> LogSlice | None:
        """What is durable beyond ``seq``; None when there is nothing.

        Raises ``LookupError`` when the memory no longer reaches back to ``seq``: read PostgreSQL.
        """
        limit = self.durable_seq if upto is None else min(upto, self.durable_seq)
        if seq >= limit:
            return None
        if not self._durable:
            raise LookupError(f"{self!r} was taken over with nothing in memory")
        newest = self._durable[-1]
        if newest.first_seq == seq + 1 and upto is None:
            return LogSlice(newest.last_seq, newest.text, newest.terminal)
        if self._durable[0].first_seq > seq + 1:
            raise LookupError(f"{self!r} keeps only what follows {self._durable[0].first_seq - 1}")
        return joined(self._beyond(seq), seq, limit)

    def _beyond(self, seq: int) -> Iterable[Segment]:
        """What is kept beyond ``seq``; from the end where that is nearer, since a long answer has
        thousands of segments and its readers want the last few."""
        if seq - self._durable[0].first_seq < self._durable[-1].last_seq - seq:
            return self._durable
        found = list(takewhile(lambda segment: segment.last_seq > seq, reversed(self._durable)))
        found.reverse()
        return found

    def changed(self, follow: Follow | None = None) -> asyncio.Future[None]:
        """A future that is done at the next change: more is durable, the log is lost, or ``wake``.

        A reader that stops waiting cancels it; it is forgotten with that change. What ``follow``
        takes of what becomes durable is no change: its reader goes on waiting.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiters.append((future, follow))
        return future

    def wake(self) -> None:
        """Have everybody who waits look again."""
        waiters, self._waiters = self._waiters, []
        for future, _ in waiters:
            if not future.done():
                future.set_result(None)

    def _give(self, segment: Segment) -> None:
        """``wake``, for those who do not take what has become durable as it is."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            future, follow = waiter
            if future.done():
                continue
            try:
                if follow is not None and follow(segment):
                    self._waiters.append(waiter)
                else:
                    future.set_result(None)
            except Exception as exc:  # noqa: BLE001  it is this reader's alone
                future.set_exception(exc)

    async def stored(self) -> None:
        """Return when the session can be found by every process. Raises ``self.lost``."""
        while not self.is_stored:
            if self.lost is not None:
                raise self.lost
            await self.changed()

    async def flushed(self) -> None:
        """Return when everything appended and recorded so far is durable. Raises ``self.lost``."""
        while self._runs or self._records or self.durable_seq < self.last_seq or self.in_flight:
            if self.lost is not None:
                raise self.lost
            self.press()
            await self.changed()
        if self.lost is not None:
            raise self.lost


def terminal_bytes(terminal: dict[str, Any] | None) -> bytes | None:
    """The terminal record as it is stored."""
    return None if terminal is None else orjson.dumps(terminal)
