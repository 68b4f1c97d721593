"""The stream runner: one task per live session, the only place that decides on failover."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass

from psycopg_pool import AsyncConnectionPool

from streaming import metrics
from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.state import SessionState
from streaming.errors import (
    ContextLengthExceeded,
    EngineRejected,
    FailoverExhausted,
    FailoverOff,
    GatewayError,
    JournalUnavailable,
    SeamRefused,
)
from streaming.fleet.attribution import Attributor
from streaming.fleet.continuations import Booking, Continuations
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.suspicion import Suspicion
from streaming.fleet.watch import FleetWatch
from streaming.runtime.attempt import AttemptRun, Overtaken
from streaming.runtime.continuation import Continuation
from streaming.runtime.ending import Tally, store_end
from streaming.runtime.hedge import Hedge
from streaming.runtime.journal import Journal, down_too_long, record_event
from streaming.runtime.limits import answer_limit
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.placement import Placement
from streaming.runtime.preparation import Preparation
from streaming.runtime.reclaim import Reclaimer
from streaming.runtime.records import now, session_changed
from streaming.runtime.turns import Turns

logger = logging.getLogger(__name__)

# Failures that say something about the node, not only about this stream on it.
NODE_IS_SUSPECT = frozenset(
    {Cause.REFUSED, Cause.RESET, Cause.CLOSED, Cause.STALLED, Cause.NO_FIRST_TOKEN}
)
CREATION_SECONDS = 10.0
"""How long a new session may wait for the journal before its client is told."""

MAX_UNWRITTEN = 2000
"""Tokens of one session that may wait for the journal before its engine is read no further."""

HEDGE_AGAIN_SECONDS = 1.0
"""After a hedge that failed."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a session brings along that was taken over."""

    prompt: list[int] | None
    attempts: int
    failovers: int
    discarded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all runners of a process share."""

    fleet: Fleet
    attributor: Attributor
    reclaimer: Reclaimer
    watch: FleetWatch
    suspicion: Suspicion
    continuations: Continuations
    turns: Turns
    journal: Journal
    pool: AsyncConnectionPool


class StreamRunner:
    """Runs attempts until the answer ends, and writes down how it ended.

    It oversees its attempts (``attempt.Overseer``): usually one, for a while two when the first is
    silent. Only one of them may append to the log, the other is overtaken.
    """

    def __init__(
        self, session: LiveSession, shared: Shared, resumption: Resumption | None = None
    ) -> None:
        self._session = session
        self._log = session.log
        self._shared = shared
        self._placement = Placement(session, shared.fleet, shared.continuations)
        self._tally = Tally()
        prompt = None
        self._failed_at: float | None = None
        self._silent_since: float | None = None
        self._began = asyncio.get_running_loop().time()
        if resumption is not None:
            prompt = resumption.prompt
            self._tally = Tally(resumption.attempts, resumption.failovers, resumption.discarded)
            self._failed_at = asyncio.get_running_loop().time()
        self._preparation = Preparation(
            session, Continuation(session, shared.pool, prompt), self._placement, self._tally, self
        )
        self._next_kind = "resumption" if self._tally.attempts else "first"
        self._tried = 0
        self._failures_in_row = 0
        self._last_failure: AttemptFailed | None = None
        self._last_number = 0
        """The attempt that failed with it."""
        self._current: AttemptRun | None = None
        self._on: Node
        """The node of the attempt under way, or in preparation."""
        self._hedge: Hedge | None = None
        self._lost_hedges: set[asyncio.Task[str]] = set()
        self._no_hedge_before = 0.0
        self._moving: asyncio.Task[None] | None = None
        self._reserved: Booking | None = None

    def __repr__(self) -> str:
        return f"<StreamRunner {self._session!r} attempt {self._tally.attempts}>"

    async def run(self) -> None:
        """Run to the end. Raises only ``CancelledError``, when the process goes down."""
        session = self._session
        session.has_begun = True
        try:
            with answer_limit(session):
                end = session.end_request or await self._produce()
        except asyncio.CancelledError:
            if session.end_request is None:
                raise
            end = session.end_request
        except RejectedByEngine as exc:
            end = self._failed(_rejection(exc), "rejected_by_engine")
        except GatewayError as exc:
            end = self._failed(exc, exc.code)
        except Exception:  # the edge of the task: an unforeseen fault must end in a stored state
            logger.exception("the runner failed", extra={"session": str(session.id)})
            error = GatewayError("The gateway failed to go on with this answer.")
            end = self._failed(error, error.code)
        if session.finish_reason and end.state is not SessionState.FAILED:
            # The answer was whole before it was asked to end in another way.
            end = SessionEnd.completed(session.finish_reason)
        await store_end(session, end, self._tally)

    def _failed(self, error: GatewayError, what: str) -> SessionEnd:
        """The session fails with ``error``; ``what``: see ``Attributor.end_cause``."""
        cause, evidence = self._shared.attributor.end_cause(
            self._session.id, what, self._last_number, self._last_failure
        )
        return SessionEnd(
            SessionState.FAILED, cause=cause, error=error.as_openai()["error"], evidence=evidence
        )

    # Attempt after attempt

    async def _produce(self) -> SessionEnd:
        """Attempt after attempt, until one finishes. Raises ``GatewayError`` when none can."""
        await self._wait_until_created()
        if self._session.finish_reason:
            return SessionEnd.completed(self._session.finish_reason)
        try:
            while True:
                async with self._shared.turns.next() as turn:
                    booking = await self._next_place()
                    self._on = booking.node
                    try:
                        run = await self._preparation.attempt(booking, turn, self._next_kind)
                        if run is None:
                            continue
                        if isinstance(run, SessionEnd):
                            return run
                        run.failed_at, run.silent_since = self._failed_at, self._silent_since
                        self._tried += 1
                        return await self._run(run)
                    except AttemptFailed as failure:
                        self._note_failure(self._on, failure)
                    finally:
                        self._current = None
                        booking.end()
        finally:
            await self._let_go()

    async def _run(self, run: AttemptRun) -> SessionEnd:
        """Run an attempt, and the hedges that overtake it; how the answer ends if one finishes."""
        work: Awaitable[str] = self._watched(run)
        self._current = run
        while True:
            try:
                return SessionEnd.completed(await work)
            except Overtaken:
                hedge = self._hedge
                assert hedge is not None
            except AttemptFailed as failure:
                hedge = self._hedge
                if hedge is None:
                    raise
                # The one that was started beside it is the next one.
                metrics.hedge("won")
                self._note_failure(self._on, failure)
            self._hedge = None
            self._current, self._on, work = hedge.run, hedge.booking.node, hedge.task

    async def _watched(self, run: AttemptRun) -> str:
        """Run one attempt; its finish reason. Raises as ``AttemptRun.run``."""
        begun, node = self._log.last_seq, run.node
        self._shared.suspicion.began(node, run)
        try:
            return await run.run()
        except RejectedByEngine as exc:
            if begun and self._log.last_seq == begun and not exc.in_stream:
                # Another engine took this request: what is wrong is how it was to be continued.
                raise AttemptFailed(Cause.BAD_STATUS, f"HTTP {exc.status}: {exc}") from exc
            raise
        except AttemptFailed as failure:
            run.booking.end()
            silence = asyncio.get_running_loop().time() - run.last_data
            self._shared.attributor.failed(node, self._session.id, run.number, failure, silence)
            self._last_number = run.number
            raise
        finally:
            if self._silent_since is None:
                self._silent_since = run.last_data
            run.booking.end()
            self._shared.suspicion.ended(node, run)
            self._shared.reclaimer.ended(
                node, self._session.id, run.number, run.generation.request_id, run.engine_finished
            )
            self._tally.discarded += run.discarded
            if run is self._current and self._moving is not None:
                self._moving.cancel()
                self._moving = None

    async def _let_go(self) -> None:
        """Nothing may go on when the session does not."""
        tasks = set(self._lost_hedges)
        if self._hedge is not None:
            tasks.add(self._hedge.task)
        for task in tasks:
            task.cancel()
        if self._moving is not None:
            self._moving.cancel()
        if self._reserved is not None:
            self._reserved.end()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait_until_created(self) -> None:
        """No engine is asked before the session is durable. Raises ``JournalUnavailable``."""
        try:
            async with asyncio.timeout(CREATION_SECONDS):
                await self._log.flushed()
        except TimeoutError:
            raise JournalUnavailable from None

    async def _next_place(self) -> Booking:
        """Where the next attempt goes. Raises ``GatewayError`` when it may go nowhere."""
        if self._reserved is not None:
            reserved, self._reserved = self._reserved, None
            return reserved
        if self._tried >= conf().max_attempts:
            raise FailoverExhausted(f"{self._tried} attempts have failed.")
        return await self._placement.next(
            self._failed_at or asyncio.get_running_loop().time(),
            is_continuation=self._log.last_seq > 0 or self._failed_at is not None,
        )

    def _note_failure(self, node: Node, failure: AttemptFailed) -> None:
        """Decide whether to go on after a failed attempt. Raises ``GatewayError`` if not."""
        session = self._session
        self._shared.fleet.attempt_failed(node, failure.cause, failure.retry_after)
        if self._failed_at is None:  # the reader has been waiting since the first failure
            self._failed_at = asyncio.get_running_loop().time()
        if failure.cause is Cause.MIGRATED:
            self._next_kind = "migration"
            self._tried -= 1
            self._log.note(
                record_event(session.id, "moving", self._log.last_seq, now(), node=node.name)
            )
            return
        self._last_failure = failure
        self._next_kind = "failover"
        self._placement.note_failure(node)
        self._tally.failovers += 1
        self._failures_in_row += 1
        if failure.cause in NODE_IS_SUSPECT and node.health is Health.UP:
            self._shared.watch.suspect(node, str(failure))
        if session.state is not SessionState.RECOVERING:
            session.move(SessionState.RECOVERING)
        session.tell(
            "recovering",
            attempt=self._tally.attempts,
            node=node.name,
            cause=failure.cause.value,
            seq=self._log.last_seq,
        )
        self._log.note(
            session_changed(session.id, state=session.state.value),
            record_event(
                session.id, "recovering", self._log.last_seq, now(),
                node=node.name, cause=failure.cause.value,
            ),
        )  # fmt: skip
        if not self._shared.fleet.switches(session.model, node).failover:
            raise FailoverOff(f"Failover is switched off for {session.model} or {node.name}.")
        if self._failures_in_row > conf().max_failovers:
            if failure.cause is Cause.MISMATCH:
                raise SeamRefused(f"The answer cannot be continued unchanged: {failure.detail}")
            raise FailoverExhausted(
                f"{self._failures_in_row} attempts in a row failed; the last one: {failure.cause.value}."
            )

    # What its attempts tell it (``attempt.Overseer``)

    def may_append(self, run: AttemptRun) -> bool:
        """Before the first token of an attempt: False if another one has been faster."""
        hedge = self._hedge
        if hedge is not None and run is hedge.run:
            hedge.first.overtake()
            metrics.hedge("won")
            self._tell_attributor_of_silence(hedge.first)
            self._log.note(
                record_event(
                    self._session.id, "hedge_won", self._log.last_seq, now(),
                    node=run.node.name, silent=hedge.first.node.name,
                )
            )  # fmt: skip
        return not run.is_overtaken

    def _tell_attributor_of_silence(self, run: AttemptRun) -> None:
        cause = Cause.STALLED if run.has_begun else Cause.NO_FIRST_TOKEN
        silence = asyncio.get_running_loop().time() - run.last_data
        failure = AttemptFailed(
            cause, f"no data for {silence:.1f} s", evidence=run.generation.watch.facts()
        )
        self._shared.attributor.failed(
            run.node, self._session.id, run.number, failure, silence, overtaken=True
        )

    def moved(self, run: AttemptRun) -> None:
        """Data came on an attempt that is hedged: it was only slow."""
        run.is_hedged = False
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            hedge.lose()
            metrics.hedge("lost")
            self._lost_hedges.add(hedge.task)
            hedge.task.add_done_callback(self._lost_hedges.discard)
            self._log.note(
                record_event(
                    self._session.id, "hedge_lost", self._log.last_seq, now(),
                    node=hedge.booking.node.name, silent=run.node.name,
                )
            )  # fmt: skip

    def progress(self, run: AttemptRun) -> None:
        """An attempt has produced a token that is new."""
        run.turn.end()
        run.booking.release()
        self._shared.fleet.attempt_succeeded(run.node)
        session = self._session
        first = self._log.last_seq == 0
        self._failures_in_row = 0
        self._failed_at = self._silent_since = None
        if first:
            metrics.first_token(session.model, asyncio.get_running_loop().time() - self._began)
        if session.state is SessionState.STREAMING:
            return
        session.move(SessionState.STREAMING)
        self._log.note(
            session_changed(
                session.id,
                state=session.state.value,
                first_token_at=now() if first else None,
                failovers=self._tally.failovers,
                prompt_tokens=session.prompt_tokens,
            )
        )

    async def room(self) -> None:
        """Wait until the journal has caught up with this session. Raises ``JournalUnavailable``."""
        while self._log.unwritten > MAX_UNWRITTEN:
            if self._log.lost is not None:
                raise self._log.lost
            if down_too_long(self._shared.journal):
                raise JournalUnavailable
            changed = self._log.changed()
            try:
                async with asyncio.timeout(1.0):
                    await changed
            except TimeoutError:
                pass

    def hedge(self, run: AttemptRun) -> None:
        """An attempt is silent: try it elsewhere as well, if there is a place."""
        loop_time = asyncio.get_running_loop().time()
        if (
            run is not self._current
            or self._hedge is not None
            or self._session.end_request is not None
            or loop_time < self._no_hedge_before
            or not self._shared.fleet.switches(self._session.model, run.node).hedging
        ):
            return
        booking = self._placement.elsewhere(run.node)
        if booking is None:
            return
        run.is_hedged = True
        self._hedge = hedge = Hedge(run, booking)
        hedge.task = asyncio.create_task(self._run_hedge(hedge), name="hedge")
        hedge.task.add_done_callback(lambda _: self._hedge_ended(hedge))
        self._log.note(
            record_event(
                self._session.id, "hedged", self._log.last_seq, now(),
                node=booking.node.name, silent=run.node.name,
                silent_ms=round((loop_time - run.last_data) * 1000),
            )
        )  # fmt: skip

    async def _run_hedge(self, hedge: Hedge) -> str:
        try:
            async with self._shared.turns.next() as turn:
                run = await self._preparation.attempt(hedge.booking, turn, "hedge")
                if not isinstance(run, AttemptRun):
                    raise AttemptFailed(Cause.MISMATCH, "the node has no room for this answer")
                run.failed_at = run.silent_since = hedge.first.last_data
                hedge.run = run
                if hedge is not self._hedge:  # the first has failed meanwhile: it is the only one
                    self._current = run
                return await self._watched(run)
        finally:
            hedge.booking.end()

    def _hedge_ended(self, hedge: Hedge) -> None:
        """A hedge that failed by itself has no say; the first attempt goes on."""
        failure = None if hedge.task.cancelled() else hedge.task.exception()
        if hedge is self._hedge and not hedge.first.is_overtaken:
            self._hedge = None
            hedge.first.is_hedged = False
            metrics.hedge("failed")
            self._no_hedge_before = asyncio.get_running_loop().time() + HEDGE_AGAIN_SECONDS
            if isinstance(failure, AttemptFailed):
                node = hedge.booking.node
                self._placement.note_failure(node)
                self._shared.fleet.attempt_failed(node, failure.cause, failure.retry_after)
            logger.info("a hedge failed: %s", failure, extra={"session": str(self._session.id)})

    def migrate(self, run: AttemptRun) -> None:
        """The node of an attempt is being emptied: go on elsewhere as soon as there is a place."""
        if run is self._current and self._moving is None and self._hedge is None:
            self._moving = asyncio.create_task(self._move(run), name="move")

    async def _move(self, run: AttemptRun) -> None:
        since = asyncio.get_running_loop().time()  # behind all that wait because of a failure
        booking = await self._placement.away_from(run.node, since)
        if run is self._current and self._reserved is None and self._hedge is None:
            self._reserved = booking
            run.interrupt(AttemptFailed(Cause.MIGRATED, f"{run.node.name} is being drained"))
        else:
            booking.end()


def _rejection(exc: RejectedByEngine) -> GatewayError:
    words = exc.message.lower()
    if "context" in words and ("exceed" in words or "length" in words or "maximum" in words):
        return ContextLengthExceeded(exc.message)
    return EngineRejected(f"The engine refused the request: {exc.message}")
