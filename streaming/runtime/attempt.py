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
from streaming.core.chunks import TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.pace import Pace
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState
from streaming.engines.base import Generation, TokenStream
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Node
from streaming.metrics.plain import Samples
from streaming.runtime.attempt_record import answer_went_on, attempt_ended, attempt_started
from streaming.runtime.intake import Intake
from streaming.runtime.limits import LimitTimer, silence_limit
from streaming.runtime.live import LiveSession
from streaming.runtime.quality import variant_label
from streaming.runtime.records import now
from streaming.runtime.screening import Screening
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
    _started: float = 0.0
    _gaps: Samples = field(init=False)
    _pace: Pace = field(default_factory=Pace)
    _timeout: asyncio.Timeout | None = None
    _limit: LimitTimer = field(init=False)
    """On its silence."""
    _finish: str | None = None
    _raised: Exception | None = None
    """What went wrong with what was received."""
    _interruption: AttemptFailed | None = None
    _first_token: float | None = None
    _first_token_at: datetime | None = None
    _recovery_ms: float | None = None
    _intake: Intake = field(init=False)

    async def run(self) -> str:
        """Run it; returns the finish reason. Raises ``AttemptFailed`` or ``RejectedByEngine``."""
        session = self.session
        loop = asyncio.get_running_loop()
        self._started = self.last_data = loop.time()
        self._intake = Intake(session, self.number, self.known, self.screening, self._before_tokens)
        self._gaps = metrics.pace(self.node.name, session.model)
        # What is held back, compared or asked about may take longer, whatever the node does.
        if self.silent_since is not None and self._intake.is_plain:
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
    def engine_finished(self) -> bool:
        """Whether the engine itself said that the request is over."""
        return self._intake.engine_finished

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
            self._finish = self._intake.take(chunks)
        except Exception as exc:  # noqa: BLE001  it belongs to our task, not to the connection
            self._raised = exc
            return False
        return self._finish is None and self.session.log.unwritten <= UNWRITTEN_ENOUGH

    async def _follow_moderated(self, stream: TokenStream) -> None:
        """``_follow``, where somebody is asked before anything is shown."""
        async for chunks in stream:
            self._note_read()
            with self._limit.paused():
                self._finish = await self._intake.take_moderated(chunks)
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

    def _before_tokens(self) -> None:
        """Raises ``Overtaken`` before the first of them, if another attempt was faster."""
        if not self.overseer.may_append(self):
            raise Overtaken
        self.awaited_since = None
        if self.is_hedged:
            self.overseer.moved(self)
        self._note_first_token()

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
            answer = 0 if self.grade is SeamGrade.REGENERATED else self._intake.first_seq - 1
            self.session.prompt_tokens = reported - answer

    def _ended(self, reason: str, detail: str) -> None:
        """Write down how it went. Tokens without text yet, or held back, are discarded."""
        log, loop, intake = self.session.log, asyncio.get_running_loop(), self._intake
        self.discarded = intake.generated - intake.appended
        noticed_after = None
        if reason not in ("finished", "cancelled", "migrated"):
            noticed_after = loop.time() - self.last_data
        metrics.attempt_ended(
            self.node.name,
            reason,
            discarded=intake.discarded,
            repeated=intake.repeated,
            detection_seconds=None if reason in ("overtaken", "rejected") else noticed_after,
        )
        logger.info(
            "attempt ended",
            extra={
                "kind": self.kind,
                "reason": reason,
                "tokens": intake.appended,
                "seconds": round(loop.time() - self._started, 3),
            },
        )
        if self.span is not None:
            self.span.end(
                reason,
                is_failure=reason not in UNREMARKABLE_ENDS,
                output_tokens=intake.generated,
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
                seqs=(intake.first_seq, intake.last_seq) if intake.last_seq else None,
                first_token_at=self._first_token_at,
                ttft_ms=None if first is None else (first - self._started) * 1000,
                detection_ms=None if noticed_after is None else noticed_after * 1000,
                recovery_ms=self._recovery_ms,
                generated=intake.generated,
                discarded=intake.discarded,
                repeated=intake.repeated,
                usage=self.generation.usage,
                engine_finished=intake.engine_finished,
            )
        )
