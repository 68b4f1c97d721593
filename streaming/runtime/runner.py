"""The stream runner: one task per live session, the only place that decides on failover."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime

from streaming import metrics
from streaming.conf import conf
from streaming.core import log_fields
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
    Unforeseen,
)
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Health, Node
from streaming.runtime.attempt import AttemptRun, Overtaken
from streaming.runtime.attempt_record import attempt_not_asked
from streaming.runtime.continuation import Continuation
from streaming.runtime.ending import Tally, store_end
from streaming.runtime.hedge import Hedging
from streaming.runtime.journal import down_too_long, record_event
from streaming.runtime.limits import answer_limit
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.moves import Move
from streaming.runtime.placement import Placement
from streaming.runtime.preparation import Preparation
from streaming.runtime.quality import variant_label
from streaming.runtime.records import now, session_changed
from streaming.runtime.shared import Shared

logger = logging.getLogger(__name__)

# Failures that say something about the node, not only about this stream on it.
IT_BROKE_OFF = frozenset({Cause.REFUSED, Cause.RESET, Cause.CLOSED})
IT_WAS_SILENT = frozenset({Cause.STALLED, Cause.NO_FIRST_TOKEN})
CREATION_SECONDS = 10.0
"""How long a new session may wait for the journal before its client is told."""

MAX_UNWRITTEN = 2000
"""Tokens of one session that may wait for the journal before its engine is read no further."""


RETURNS = 2
"""A session may fail as often in all as this many times ``MAX_ATTEMPTS``, however often its reader
comes back: a request on which engines break down must not go through all of them for ever."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a session brings along that was taken over. ``until``: while it was suspended, when it
    could be continued."""

    prompt: array[int] | None
    attempts: int
    failovers: int
    discarded: int
    until: datetime | None


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
        self._until: datetime | None = None
        self._began_at_seq = self._log.last_seq
        self._failed_at: float | None = None
        self._silent_since: float | None = None
        self._began = asyncio.get_running_loop().time()
        if resumption is not None:
            prompt, self._until = resumption.prompt, resumption.until
            self._tally = Tally(resumption.attempts, resumption.failovers, resumption.discarded)
            self._failed_at = asyncio.get_running_loop().time()
        self._preparation = Preparation(
            session,
            Continuation(session, shared.pool, prompt),
            self._placement,
            self._tally,
            self,
            shared,
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
        self._hedging = Hedging(
            session, shared, self._placement, self._preparation, self._watched, self._set_current
        )
        self._move: Move | None = None
        self._reserved: Booking | None = None

    def __repr__(self) -> str:
        return f"<StreamRunner {self._session!r} attempt {self._tally.attempts}>"

    async def run(self) -> None:
        """Run to the end. Raises only ``CancelledError``, when the process goes down."""
        session = self._session
        session.has_begun = True
        session.sign_log()
        try:
            with answer_limit(session):
                end = session.end_request or await self._produce()
        except asyncio.CancelledError:
            if session.end_request is None:
                raise
            end = session.end_request
        except RejectedByEngine as exc:
            end = self._broken_off(_rejection(exc), "rejected_by_engine")
        except GatewayError as exc:
            end = self._broken_off(exc, exc.code)
        except Exception:  # the edge of the task: an unforeseen fault must end in a stored state
            logger.exception("the runner failed")
            end = self._broken_off(Unforeseen(), Unforeseen.code)
        if session.finish_reason and end.state is not SessionState.FAILED:
            # The answer was whole before it was asked to end in another way.
            end = SessionEnd.completed(session.finish_reason)
        await store_end(session, end, self._tally)

    def _broken_off(self, error: GatewayError, what: str) -> SessionEnd:
        """The answer breaks off with ``error``; ``what``: see ``Attributor.end_cause``.

        Where another try can finish it the session is suspended. It fails for good where the request
        itself is to blame, where it has failed too often, and where its time is over: that of one
        which was continued and has no new token began with the suspension before.
        """
        until = self._until if self._log.last_seq == self._began_at_seq else None
        goes_on = (
            error.resumable
            and self._tally.failovers < RETURNS * conf().max_attempts
            and (until is None or now() < until)
        )
        cause, evidence = self._shared.attributor.end_cause(
            self._session.id, what, self._last_number, self._last_failure
        )
        return SessionEnd(
            SessionState.SUSPENDED if goes_on else SessionState.FAILED,
            cause=cause,
            error={**error.as_openai()["error"], "resumable": goes_on},
            evidence=evidence,
            resume_until=until,
        )

    # Attempt after attempt

    async def _produce(self) -> SessionEnd:
        """Attempt after attempt, until one finishes. Raises ``GatewayError`` when none can."""
        await self._wait_until_created()
        try:
            while True:
                if self._session.finish_reason:  # nothing may be asked for behind the end
                    return SessionEnd.completed(self._session.finish_reason)
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
                        if self._current is None:
                            self._note_unasked(self._on, failure)
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
                hedge = self._hedging.promote()
                assert hedge is not None
            except AttemptFailed as failure:
                if not self._hedging.is_pending:
                    raise
                # The one that was started beside it is the next one.
                self._note_failure(self._on, failure)
                hedge = self._hedging.promote()
                assert hedge is not None
            self._current, self._on, work = hedge.run, hedge.booking.node, hedge.task

    def _set_current(self, run: AttemptRun) -> None:
        self._current = run

    async def _watched(self, run: AttemptRun) -> str:
        """Run one attempt; its finish reason. Raises as ``AttemptRun.run``."""
        begun, node = self._log.last_seq, run.node
        self._shared.suspicion.began(node, run)
        try:
            with log_fields.within(attempt=run.number, node=node.name):
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
            if run is self._current and not run.is_overtaken and self._silent_since is None:
                self._silent_since = run.last_data
            run.booking.end()
            self._shared.suspicion.ended(node, run)
            self._shared.reclaimer.ended(
                node, self._session.id, run.number, run.generation.request_id, run.engine_finished
            )
            self._tally.discarded += run.discarded

    async def _let_go(self) -> None:
        """Nothing may go on when the session does not."""
        if self._reserved is not None:
            self._reserved.end()
        if self._move is not None:
            self._move.end()
        await self._hedging.end()

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

    def _note_unasked(self, node: Node, failure: AttemptFailed) -> None:
        """The attempt failed while it was prepared: the engine did not render, tokenise, …"""
        self._tally.attempts += 1
        self._last_number = number = self._tally.attempts
        self._log.note(*attempt_not_asked(self._session, node, number, self._next_kind, failure))
        self._shared.attributor.failed(node, self._session.id, number, failure)

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
        if failure.cause in IT_WAS_SILENT:
            self._shared.watch.suspect_mute(node, str(failure))
        elif failure.cause in IT_BROKE_OFF and node.health is Health.UP:
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
        return self._hedging.may_append(run)

    def moved(self, run: AttemptRun) -> None:
        """Data came on an attempt that is hedged."""
        self._hedging.first_moved(run)

    def progress(self, run: AttemptRun) -> None:
        """An attempt has produced a token that is new."""
        run.turn.end()
        run.booking.release()
        if self._move is not None:
            self._move.end()
            self._move = None
        self._shared.fleet.attempt_succeeded(run.node)
        session = self._session
        first = self._log.last_seq == 0
        self._failures_in_row = 0
        self._failed_at = self._silent_since = None
        if first:
            metrics.first_token(
                session.model,
                asyncio.get_running_loop().time() - self._began,
                session.principal.level.value,
                variant_label(session.principal.variant),
            )
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
        """An attempt is silent."""
        if self._session.end_request is not None:
            return
        if run is self._current:
            self._hedging.begin(run)
        else:
            self._hedging.begin_again(run)

    def hasten(self, run: AttemptRun) -> None:
        """The answer waits for an attempt unusually long; others may have nowhere to go on at all."""
        if not self._shared.continuations.waiting:
            self.hedge(run)

    def migrate(self, run: AttemptRun) -> None:
        """The node of an attempt is being emptied: go on elsewhere as soon as there is a place."""
        if run is not self._current or self._reserved is not None or self._hedging.is_pending:
            return
        begun = self._shared.moves.begin(
            run.node, self._session.model, lambda: self._placement.away_from(run.node)
        )
        if begun is not None:
            self._reserved, self._move = begun
            run.interrupt(AttemptFailed(Cause.MIGRATED, f"{run.node.name} is being drained"))


def _rejection(exc: RejectedByEngine) -> GatewayError:
    words = exc.message.lower()
    if "context" in words and ("exceed" in words or "length" in words or "maximum" in words):
        return ContextLengthExceeded(exc.message)
    return EngineRejected(f"The engine refused the request: {exc.message}")
