"""One attempt: read an engine's stream into the log until it finishes or fails."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from streaming import metrics
from streaming.conf import conf
from streaming.core.boundary import CleanBoundary
from streaming.core.chunks import Token, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.pace import Pace
from streaming.core.seams import SeamGrade, Suppressor
from streaming.core.state import SessionState
from streaming.core.stop_strings import StopMatcher
from streaming.engines.base import Generation, TokenStream
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Node
from streaming.metrics.plain import Samples
from streaming.runtime.attempt_record import answer_went_on, attempt_ended, attempt_started
from streaming.runtime.limits import LimitTimer, silence_limit
from streaming.runtime.live import LiveSession
from streaming.runtime.quality import variant_label
from streaming.runtime.records import now, session_changed
from streaming.runtime.screening import Portion, Screening
from streaming.runtime.turns import Turn
from streaming.tracing import AttemptSpan

logger = logging.getLogger(__name__)

# How long the usage may take that an engine sends after the answer has finished.
USAGE_SECONDS = 0.25
# Tokens that may wait for the journal before the engine is read no further for a while.
UNWRITTEN_ENOUGH = 1000
UNREMARKABLE_ENDS = frozenset({"finished", "cancelled", "migrated", "overtaken"})


class Overtaken(Exception):
    """The attempt that was started beside this one has produced the next token."""


class Overseer(Protocol):
    """What an attempt tells its runner."""

    def may_append(self, run: AttemptRun) -> bool:
        """Before its first token: False if another attempt has been faster."""

    def moved(self, run: AttemptRun) -> None:
        """Data came while ``run.is_hedged``."""

    def progress(self, run: AttemptRun) -> None:
        """Its first new token is in the log."""

    async def room(self) -> None:
        """Return when the journal takes more."""

    def hedge(self, run: AttemptRun) -> None:
        """It is silent: try it elsewhere as well."""

    def hasten(self, run: AttemptRun) -> None:
        """The answer waits for it unusually long: the same, if nobody waits for a place."""

    def migrate(self, run: AttemptRun) -> None:
        """Its node is being emptied: go on elsewhere."""


@dataclass(slots=True, kw_only=True, eq=False)
class AttemptRun:
    """``kind``: see ``models.Attempt.Kind``. ``grade`` None: nothing to join on. Times are loop times.

    To ``fleet.suspicion`` it is what is watched.
    """

    session: LiveSession
    node: Node
    number: int
    kind: str
    grade: SeamGrade | None
    generation: Generation
    known: str
    overseer: Overseer
    booking: Booking
    turn: Turn
    prompt_size: int
    """Tokens that the engine has to read before its first, answer so far included."""
    screening: Screening | None = None
    span: AttemptSpan | None = None
    failed_at: float | None = None
    silent_since: float | None = None
    """When the reader's last token came, where this attempt has to go on."""
    discarded: int = 0
    last_data: float = 0.0
    has_begun: bool = False
    is_paused: bool = False
    is_hedged: bool = False
    is_overtaken: bool = False
    awaited_since: float | None = None
    """Since when the answer stands still until this attempt has a token; None: it does not."""
    patience: float = 1.0
    """How many times the usual that may take; see ``hedge.Hedge``."""
    engine_finished: bool = False
    """Whether the engine itself said that the request is over."""
    _started: float = 0.0
    _gaps: Samples = field(init=False)
    _pace: Pace = field(default_factory=Pace)
    _timeout: asyncio.Timeout | None = None
    _limit: LimitTimer = field(init=False)
    """On its silence."""
    _finish: str | None = None
    _raised: Exception | None = None
    """What went wrong with what was received."""
    _rehearse_at: int | None = None
    _interruption: AttemptFailed | None = None
    _first_token: float | None = None
    _first_token_at: datetime | None = None
    _recovery_ms: float | None = None
    _first_seq: int = 0
    _last_seq: int = 0
    """Of its own tokens: others append to the same log. 0: it has none."""
    _generated: int = 0
    """Tokens read from the engine."""
    _appended: int = 0
    """Of them, those in the log."""
    _boundary: CleanBoundary = field(default_factory=CleanBoundary)
    _stops: StopMatcher = field(default_factory=lambda: StopMatcher(()))
    _suppressor: Suppressor | None = None
    _is_plain: bool = False
    """Whether its tokens go into the log as they come."""

    async def run(self) -> str:
        """Run it; returns the finish reason. Raises ``AttemptFailed`` or ``RejectedByEngine``."""
        session = self.session
        loop = asyncio.get_running_loop()
        self._started = self.last_data = loop.time()
        self._first_seq = session.log.last_seq + 1
        self._stops = StopMatcher(session.request.stop)
        self._gaps = metrics.pace(self.node.name, session.model)
        if self.known:
            self._suppressor = Suppressor(self.known, list(session.log.token_ids))
        self._is_plain = not (self.screening or self._suppressor or session.request.stop)
        if self.silent_since is not None and self._is_plain:
            self.awaited_since = self._started
        session.log.note(
            attempt_started(session, self.node, self.number, self.kind, self.grade, self.generation)
        )
        session.tell("attempt", attempt=self.number, node=self.node.name, seq=session.log.last_seq)
        try:
            finish = await self._read()
        except Overtaken:
            self._ended("overtaken", "another attempt produced the next token")
            raise
        except AttemptFailed as exc:
            self._ended(exc.cause.value, exc.detail)
            # All streams of a dead node notice before the first of them asks another.
            await asyncio.sleep(0)
            raise
        except RejectedByEngine as exc:
            self._ended("rejected", f"HTTP {exc.status}: {exc.message}")
            raise
        except asyncio.CancelledError:
            if self.is_overtaken:
                self._ended("overtaken", "another attempt produced the next token")
            else:
                self._ended("cancelled", "the session was asked to end")
            raise
        except Exception as exc:
            # Nothing of the engine's: the session ends by it. Whoever owns a log that is lost here
            # writes down what has become of its attempts.
            if session.log.lost is None:
                self._ended("cancelled", f"the session ends: {type(exc).__name__}")
            raise
        self._ended("finished", finish)
        return finish

    async def _read(self) -> str:
        loop = asyncio.get_running_loop()
        rehearsals = [n for n in self.session.rehearsal if n >= self.session.log.last_seq]
        self._rehearse_at = min(rehearsals, default=None)
        stream = self.node.dialect.generate(self.generation)
        async with aclosing(stream):
            try:
                async with asyncio.timeout(None) as timeout:
                    self._timeout = timeout
                    self._limit = silence_limit(
                        self.session, self.node.name, timeout, conf().first_token_timeout
                    )
                    with self._limit:
                        if self.screening is not None and self.screening.is_moderated:
                            await self._follow_moderated(stream)
                        else:
                            await self._follow(stream)
                    if self._finish is not None:
                        # The answer is whole: its silence means nothing, nobody may cut it now.
                        self.is_paused = True
                        self._timeout = None
                        await self._read_usage(stream)
                        return self._finish
            except TimeoutError as exc:
                if self._finish is not None:  # cut in the moment in which it finished
                    return self._finish
                if self.is_overtaken:
                    raise Overtaken from exc
                if self._interruption is not None:
                    raise self._interruption from exc
                silence = loop.time() - self.last_data
                cause = Cause.NO_FIRST_TOKEN if self._first_token is None else Cause.STALLED
                raise AttemptFailed(
                    cause, f"no data for {silence:.1f} s", evidence=self.generation.watch.facts()
                ) from exc
        raise AttemptFailed(Cause.CLOSED, "the stream ended without a finish")

    @property
    def interval(self) -> float:
        """Its usual time between two reads, in seconds; 0: not known."""
        return self._pace.mean

    async def _follow(self, stream: TokenStream) -> None:
        """Take what comes, up to the finish or the end of the stream."""
        while await stream.pour(self._received):
            if self._raised is not None:
                raise self._raised
            if self._finish is not None:
                return
            await self._let_it_be_written()

    def _received(self, chunks: list[TokenChunk]) -> bool:
        """What one network read brought, at the moment at which it came; see ``TokenStream.pour``."""
        try:
            self._note_read()
            self._finish = self._take(chunks)
        except Exception as exc:  # noqa: BLE001  it belongs to our task, not to the connection
            self._raised = exc
            return False
        return self._finish is None and self.session.log.unwritten <= UNWRITTEN_ENOUGH

    async def _follow_moderated(self, stream: TokenStream) -> None:
        """``_follow``, where somebody is asked before anything is shown."""
        async for chunks in stream:
            self._note_read()
            with self._limit.paused():
                self._finish = await self._take_moderated(chunks)
            if self._finish is not None:
                return
            await self._let_it_be_written()

    def _note_read(self) -> None:
        """Data has come. Raises ``Overtaken`` if nobody wants it."""
        if self.is_overtaken:
            raise Overtaken
        # While the answer stands still only a token counts: it may take several reads.
        if self.is_hedged and self.awaited_since is None:
            self.overseer.moved(self)
        now = asyncio.get_running_loop().time()
        self._note_data(self._limit.moved(now, conf().gateway_silence))

    async def _let_it_be_written(self) -> None:
        """Read no further while the journal has too much of it to write."""
        if self.session.log.unwritten > UNWRITTEN_ENOUGH:
            with self._limit.paused():
                self.is_paused = True
                await self.overseer.room()
            self.is_paused = False
            self.last_data = asyncio.get_running_loop().time()

    def longest_usual(self, floor: float) -> float:
        """Silence of this stream that is usual, in seconds."""
        return self._pace.longest_usual(floor)

    def hedge(self) -> None:
        """It is silent: have it tried elsewhere as well."""
        self.overseer.hedge(self)

    def hasten(self) -> None:
        """Its reader waits for longer than for others."""
        self.overseer.hasten(self)

    def migrate(self) -> None:
        """Its node is being emptied."""
        self.overseer.migrate(self)

    def condemn(self, reason: str) -> None:
        """Its node is down, and it is silent."""
        cause = Cause.STALLED if self.has_begun else Cause.NO_FIRST_TOKEN
        self.interrupt(AttemptFailed(cause, reason, evidence=self.generation.watch.facts()))

    def interrupt(self, failure: AttemptFailed) -> None:
        """Have it end with ``failure``, unless it ends by itself before that."""
        self._interruption = failure
        self._stop_reading()

    def overtake(self) -> None:
        """Another attempt goes on: whatever still comes here is not wanted."""
        self.is_overtaken = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _note_data(self, now: float) -> None:
        if self.has_begun:
            gap = now - self.last_data
            self._pace.note(gap)
            self._gaps.note(gap)
        else:
            self.has_begun = True
            self.node.first_token.note(now - self.last_data, self.prompt_size)
        self.last_data = now

    def _take(self, chunks: list[TokenChunk]) -> str | None:
        """Append what one network read brought; the finish reason if it brought the end."""
        if self._is_plain and self._rehearse_at is None:
            return self._take_plain(chunks)
        for chunk in chunks:
            finish = self._keep(self._portion(chunk))
            if finish is not None:
                return finish
        return None

    def _take_plain(self, chunks: list[TokenChunk]) -> str | None:
        """``_take`` where nothing is held back, changed or compared: all of it goes in together."""
        log = self.session.log
        if log.lost is not None:
            raise log.lost
        ids: list[int] = []
        texts: list[str] = []
        finish = None
        ends_surely = True
        for chunk in chunks:
            count = len(chunk.token_ids)
            self._generated += count
            if self._boundary.join(chunk, ids, texts):
                ends_surely = count == 1
            finish = chunk.finish_reason
            if finish is not None:
                break
        self.engine_finished = finish is not None
        if ids:
            self._before_tokens()
            log.extend(ids, texts, self.number, ends_surely=ends_surely)
            self._note_appended(len(ids))
        if finish is not None:
            self._note_finish(finish)
        return finish

    async def _take_moderated(self, chunks: list[TokenChunk]) -> str | None:
        """``_take``, where somebody is asked before anything is shown."""
        assert self.screening is not None
        for chunk in chunks:
            portion = await self.screening.judged(self._portion(chunk))
            finish = self._keep(portion)
            if finish is not None:
                return finish
        return None

    def _portion(self, chunk: TokenChunk) -> Portion:
        """What of a chunk may be shown. Raises ``AttemptFailed``."""
        self._generated += len(chunk.token_ids)
        if self.session.log.lost is not None:
            raise self.session.log.lost
        tokens = self._boundary.feed(chunk)
        # What content rules have changed can only be compared with what they have changed, too.
        compared_last = self.screening is not None
        if self._suppressor is not None and not compared_last:
            tokens = self._suppressor.feed(tokens)
        stopped = False
        if tokens and self.session.request.stop:
            tokens, stopped = self._stops.feed(tokens)
        self.engine_finished = chunk.finish_reason is not None
        finish = "stop" if stopped else chunk.finish_reason
        if finish is not None and not stopped:
            tokens = [*tokens, *self._stops.flush()]
        ends_surely = len(chunk.token_ids) == 1 and not self._stops.held_tokens
        portion = Portion(tokens, finish, ends_surely)
        if self.screening is not None:
            portion = self.screening.screen(portion, self._suppressor)
        if (
            portion.finish is not None
            and self._suppressor is not None
            and not self._suppressor.done
        ):
            raise AttemptFailed(Cause.MISMATCH, "the regenerated answer ended too early")
        return portion

    def _keep(self, portion: Portion) -> str | None:
        """Append it; its finish reason. Raises ``AttemptFailed`` where a test wants that."""
        log, rehearse_at = self.session.log, self._rehearse_at
        tokens = portion.tokens
        # A match of a content rule is never cut in two, nor is anything asked for behind the end.
        may_rehearse = self.screening is None or portion.finish is None
        if may_rehearse and rehearse_at is not None and log.last_seq + len(tokens) > rehearse_at:
            if self.screening is None:
                tokens = tokens[: rehearse_at - log.last_seq]
                # The log never ends inside a character, where tokens have no text yet.
                while tokens and not tokens[-1].text:
                    tokens.pop()
            self._append(tokens, portion)
            self.session.rehearsal.remove(rehearse_at)
            raise AttemptFailed(Cause.REHEARSAL, f"rehearsed after token {rehearse_at}")
        self._append(tokens, portion)
        if portion.finish is not None:
            self._note_finish(portion.finish)
        return portion.finish

    def _note_finish(self, finish: str) -> None:
        """Store it in the flush of the last tokens: whoever takes the session over before its
        terminal record is written must know that no engine may be asked for more."""
        session = self.session
        session.finish_reason = finish
        session.log.record(session_changed(session.id, finish_reason=finish))

    def _append(self, tokens: list[Token], portion: Portion) -> None:
        before = self.session.log.last_seq
        if tokens:
            self._before_tokens()
            self.session.log.append(tokens, self.number, ends_surely=portion.ends_surely)
            self._note_appended(len(tokens))
        if portion.hits and self.screening is not None:
            self.screening.note(portion.hits, before)

    def _before_tokens(self) -> None:
        """Raises ``Overtaken`` before the first of them, if another attempt was faster."""
        if self._first_token is None:
            if not self.overseer.may_append(self):
                raise Overtaken
            self.awaited_since = None
            if self.is_hedged:
                self.overseer.moved(self)
            self._note_first_token()

    def _note_appended(self, count: int) -> None:
        self._appended += count
        self._last_seq = self.session.log.last_seq

    def _note_first_token(self) -> None:
        session = self.session
        self._first_token = asyncio.get_running_loop().time()
        self._first_token_at = now()
        if self.span is not None:
            self.span.first_token()
        self._note_prompt_tokens()
        if self.failed_at is not None:
            self._recovery_ms = (self._first_token - self.failed_at) * 1000
            # Of a move the reader is to notice nothing, and of a hedge only a pause.
            if session.state is SessionState.RECOVERING:
                session.tell(
                    "recovered",
                    attempt=self.number,
                    node=self.node.name,
                    grade=self.grade.value if self.grade else "",
                    seq=session.log.last_seq,
                    gap_ms=round(self._recovery_ms, 1),
                )
            session.log.note(
                answer_went_on(
                    session,
                    self.node,
                    self.kind,
                    self.grade,
                    self._first_token_at,
                    self._recovery_ms,
                )
            )
        if self.silent_since is not None:
            metrics.seam(
                self.kind,
                self.grade.value if self.grade else "none",
                gap_seconds=self._first_token - self.silent_since,
                recovery_seconds=self._recovery_ms and self._recovery_ms / 1000,
            )
            metrics.reader_gap(
                self._first_token - self.silent_since,
                session.principal.level.value,
                variant_label(session.principal.variant),
            )
        self.overseer.progress(self)

    async def _read_usage(self, stream: TokenStream) -> None:
        """Read on for what the engine says after the end; it owes us nothing by now."""
        try:
            async with asyncio.timeout(USAGE_SECONDS):
                async for _ in stream:
                    pass
        except (AttemptFailed, RejectedByEngine, TimeoutError):
            pass
        self._note_prompt_tokens()
        if self.grade is None:
            # A continuation's figure counts the answer so far, which is not the client's prompt.
            self.session.cached_prompt_tokens = self.generation.usage.cached_prompt_tokens

    def _note_prompt_tokens(self) -> None:
        """Where the prompt was sent as text, the engine tells its length."""
        reported = self.generation.usage.prompt_tokens
        if self.session.prompt_tokens is None and reported is not None:
            answer = 0 if self.grade is SeamGrade.REGENERATED else self._first_seq - 1
            self.session.prompt_tokens = reported - answer

    def _ended(self, reason: str, detail: str) -> None:
        """Write down how it went. Tokens without text yet, or held back, are discarded."""
        log, loop = self.session.log, asyncio.get_running_loop()
        repeated = self._suppressor.repeated_tokens if self._suppressor is not None else 0
        # Without text yet, held back, behind a stop string, or of an attempt that was overtaken.
        discarded = self._generated - self._appended - repeated
        self.discarded = discarded + repeated
        noticed_after = None
        if reason not in ("finished", "cancelled", "migrated"):
            noticed_after = loop.time() - self.last_data
        metrics.attempt_ended(
            self.node.name,
            reason,
            discarded=discarded,
            repeated=repeated,
            detection_seconds=None if reason in ("overtaken", "rejected") else noticed_after,
        )
        logger.info(
            "attempt ended",
            extra={
                "kind": self.kind,
                "reason": reason,
                "tokens": self._appended,
                "seconds": round(loop.time() - self._started, 3),
            },
        )
        if self.span is not None:
            self.span.end(
                reason,
                is_failure=reason not in UNREMARKABLE_ENDS,
                output_tokens=self._generated,
                seam_grade=self.grade.value if self.grade else "",
            )
        if self.screening is not None:
            log.note(*self.screening.end())
        first = self._first_token
        log.note(
            attempt_ended(
                self.session.id,
                self.number,
                reason=reason,
                detail=detail,
                grade=self.grade,
                seqs=(self._first_seq, self._last_seq) if self._last_seq else None,
                first_token_at=self._first_token_at,
                ttft_ms=None if first is None else (first - self._started) * 1000,
                detection_ms=None if noticed_after is None else noticed_after * 1000,
                recovery_ms=self._recovery_ms,
                generated=self._generated,
                discarded=discarded,
                repeated=repeated,
                usage=self.generation.usage,
                engine_finished=self.engine_finished,
            )
        )
