"""The stream runner: one task per live session, the only place that decides on failover."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState
from streaming.engines.base import Generation
from streaming.errors import (
    ContextLengthExceeded,
    EngineRejected,
    FailoverExhausted,
    GatewayError,
    JournalUnavailable,
    NoHealthyNode,
    SeamRefused,
    UnsupportedParameter,
)
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.routing import Wanted, choose
from streaming.fleet.watch import FleetWatch
from streaming.runtime.attempt import AttemptRun
from streaming.runtime.continuation import Continuation
from streaming.runtime.journal import Journal, down_too_long, record_event
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.reader import Evidence
from streaming.runtime.records import Record, RecordKind, now, session_changed
from streaming.runtime.turns import Turn, Turns

logger = logging.getLogger(__name__)

# Failures that say something about the node, not only about this stream on it.
NODE_IS_SUSPECT = frozenset(
    {Cause.REFUSED, Cause.RESET, Cause.CLOSED, Cause.STALLED, Cause.NO_FIRST_TOKEN}
)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a session brings along that was taken over."""

    prompt: list[int] | None
    attempts: int
    failovers: int
    discarded: int


class StreamRunner:
    """Runs attempts until the answer ends, and writes down how it ended."""

    def __init__(
        self,
        session: LiveSession,
        fleet: Fleet,
        watch: FleetWatch,
        journal: Journal,
        pool: AsyncConnectionPool,
        turns: Turns,
        resumption: Resumption | None = None,
    ) -> None:
        self._session = session
        self._log = session.log
        self._fleet = fleet
        self._watch = watch
        self._journal = journal
        self._turns = turns
        prompt = None if resumption is None else resumption.prompt
        self._continuation = Continuation(session, pool, prompt)
        self._attempts = 0
        self._failovers = 0
        self._failures_in_row = 0
        self._failed_nodes: list[Node] = []
        self._discarded = 0
        self._failed_at: float | None = None
        self._last_failure: AttemptFailed | None = None
        self._attempts_before = 0
        if resumption is not None:
            self._attempts = self._attempts_before = resumption.attempts
            self._failovers = resumption.failovers
            self._discarded = resumption.discarded
            self._failed_at = asyncio.get_running_loop().time()

    def __repr__(self) -> str:
        return f"<StreamRunner {self._session!r} attempt {self._attempts}>"

    async def run(self) -> None:
        """Run to the end. Raises only ``CancelledError``, when the process goes down."""
        session = self._session
        session.has_begun = True
        try:
            end = session.end_request or await self._produce()
        except asyncio.CancelledError:
            if session.end_request is None:
                raise
            end = session.end_request
        except RejectedByEngine as exc:
            end = _failed(_rejection(exc), "rejected_by_engine")
        except GatewayError as exc:
            end = _failed(exc, self._cause())
        except Exception:  # the edge of the task: an unforeseen fault must end in a stored state
            logger.exception("the runner failed", extra={"session": str(session.id)})
            end = _failed(GatewayError("The gateway failed to go on with this answer."), "unknown")
        if session.finish_reason and end.state is not SessionState.FAILED:
            # The answer was whole before it was asked to end in another way.
            end = _completed(session.finish_reason)
        await self._end(end)

    def _cause(self) -> str:
        return self._last_failure.cause.value if self._last_failure else ""

    async def _produce(self) -> SessionEnd:
        """Attempt after attempt, until one finishes. Raises ``GatewayError`` when none can."""
        await self._wait_until_created()
        if self._session.finish_reason:
            return _completed(self._session.finish_reason)
        while True:
            async with self._turns.next() as turn:
                node = await self._next_node()
                try:
                    run = await self._prepare(node, turn)
                    if run is None:
                        continue
                    if isinstance(run, SessionEnd):
                        return run
                    return await self._run(run)
                except AttemptFailed as failure:
                    self._note_failure(node, failure)

    async def _run(self, run: AttemptRun) -> SessionEnd:
        """Run an attempt; returns how the answer ends if it finishes."""
        begun = self._log.last_seq
        run.node.in_flight += 1
        try:
            return _completed(await run.run())
        except RejectedByEngine as exc:
            if begun and self._log.last_seq == begun and not exc.in_stream:
                # Another engine took this request: what is wrong is how it was to be continued.
                raise AttemptFailed(Cause.BAD_STATUS, f"HTTP {exc.status}: {exc}") from exc
            raise
        finally:
            run.node.in_flight -= 1
            self._discarded += run.discarded

    async def _wait_until_created(self) -> None:
        """No engine is asked before the session is durable. Raises ``JournalUnavailable``."""
        try:
            async with asyncio.timeout(CREATION_SECONDS):
                await self._log.flushed()
        except TimeoutError:
            raise JournalUnavailable from None

    async def _next_node(self) -> Node:
        """A node for the next attempt, waiting for one if need be, up to a limit."""
        tried = self._attempts - self._attempts_before
        if tried >= conf().max_attempts:
            raise FailoverExhausted(f"{tried} attempts have failed.")
        wait = conf().node_wait_seconds
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            wanted = Wanted(
                model=self._session.model,
                failed=self._failed_nodes,
                unfit=self._unfit_nodes(),
                is_continuation=self._log.last_seq > 0,
            )
            node = choose(self._fleet.nodes.values(), wanted, asyncio.get_running_loop().time())
            if node is not None:
                self._refuse_unsupported(node)
                return node
            try:
                async with asyncio.timeout_at(deadline):
                    # A node that asked to be left alone announces nothing when the time is over.
                    async with asyncio.timeout(0.25):
                        await self._fleet.wait_for_change()
            except TimeoutError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise NoHealthyNode(
                        f"No node for {self._session.model} became healthy within {wait:g} s."
                    ) from None

    def _unfit_nodes(self) -> list[Node]:
        """The nodes that lack a parameter or the room for this answer, while another has it."""
        model = self._session.model
        size = (self._session.prompt_tokens or 0) + self._log.last_seq
        unfit, fit = [], False
        for node in self._fleet.nodes.values():
            if model in node.models:
                context = node.models[model]
                if self._unsupported(node) or (context is not None and context <= size):
                    unfit.append(node)
                else:
                    fit = True
        return unfit if fit else []

    def _unsupported(self, node: Node) -> set[str]:
        """The parameters of this request that the node's engine does not have."""
        request = self._session.request
        asked = set(request.sampling.extra)
        if request.budget.min_tokens:
            asked.add("min_tokens")
        return asked & node.dialect.unsupported

    def _refuse_unsupported(self, node: Node) -> None:
        for name in sorted(self._unsupported(node)):
            raise UnsupportedParameter(
                f"The engines that serve {self._session.model} do not support {name}.", param=name
            )

    async def _prepare(self, node: Node, turn: Turn) -> AttemptRun | SessionEnd | None:
        """The next attempt on ``node``; or the end, when the answer turns out to be full.

        None: ``node`` turns out to have too little room, and another has more.
        """
        session, log = self._session, self._log
        produced = log.last_seq
        grade, prompt, known = await self._continuation.plan(node)
        context = node.models.get(session.model)
        size = await self._continuation.size(node, prompt, context)
        if grade is not SeamGrade.REGENERATED:
            size -= produced
        remaining = session.request.budget.remaining(size, produced, context)
        if remaining == 0:
            if node in self._unfit_nodes():
                return None
            if produced == 0:
                raise ContextLengthExceeded(
                    f"The prompt has {size} tokens; the model's context is {context}."
                )
            return _completed("length")
        if grade is SeamGrade.REGENERATED and remaining is not None:
            remaining += produced
        self._attempts += 1
        ids = Counter(log.token_ids) if grade is not SeamGrade.REGENERATED else Counter()
        generation = Generation(
            model=session.model,
            prompt=prompt,
            max_tokens=remaining,
            min_tokens=session.request.budget.still_required(
                0 if grade is SeamGrade.REGENERATED else produced
            ),
            sampling=replace(session.request.sampling, seed=session.seed),
            request_id=f"{session.id}-{self._attempts}",
            prompt_cache=node.options.prompt_cache == "on",
            produced=ids,
        )
        return AttemptRun(
            session=session,
            node=node,
            number=self._attempts,
            kind=self._kind(),
            grade=grade if produced else None,
            generation=generation,
            known=known,
            failed_at=self._failed_at,
            room=self._wait_for_room,
            progress=partial(self._note_progress, turn),
        )

    def _kind(self) -> str:
        """Why there is one more attempt (``models.Attempt.Kind``)."""
        if self._attempts == self._attempts_before + 1:
            return "resumption" if self._attempts_before else "first"
        return "failover"

    def _note_failure(self, node: Node, failure: AttemptFailed) -> None:
        """Decide whether to go on after a failed attempt. Raises ``GatewayError`` if not."""
        loop_time = asyncio.get_running_loop().time()
        session = self._session
        self._last_failure = failure
        if self._failed_at is None:  # the reader has been waiting since the first failure
            self._failed_at = loop_time
        self._failed_nodes = [*self._failed_nodes, node][-8:]
        self._failovers += 1
        self._failures_in_row += 1
        if failure.cause is Cause.BUSY:
            node.blocked_until = loop_time + min(failure.retry_after or 1.0, 60.0)
        if failure.cause in NODE_IS_SUSPECT and node.health is Health.UP:
            self._watch.suspect(node, str(failure))
        if session.state is not SessionState.RECOVERING:
            session.move(SessionState.RECOVERING)
        session.tell(
            "recovering",
            attempt=self._attempts,
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
        if self._failures_in_row > conf().max_failovers:
            if failure.cause is Cause.MISMATCH:
                raise SeamRefused(f"The answer cannot be continued unchanged: {failure.detail}")
            raise FailoverExhausted(
                f"{self._failures_in_row} attempts in a row failed; the last one: {failure.cause.value}."
            )

    def _note_progress(self, turn: Turn) -> None:
        """An attempt has produced a token that is new."""
        turn.end()
        session = self._session
        first = self._log.last_seq == 0
        self._failures_in_row = 0
        self._failed_at = None
        session.move(SessionState.STREAMING)
        self._log.note(
            session_changed(
                session.id,
                state=session.state.value,
                first_token_at=now() if first else None,
                failovers=self._failovers,
                prompt_tokens=session.prompt_tokens,
            )
        )

    async def _wait_for_room(self) -> None:
        """Wait until the journal has caught up with this session. Raises ``JournalUnavailable``."""
        while self._log.unwritten > MAX_UNWRITTEN:
            if self._log.lost is not None:
                raise self._log.lost
            if down_too_long(self._journal):
                raise JournalUnavailable
            changed = self._log.changed()
            try:
                async with asyncio.timeout(1.0):
                    await changed
            except TimeoutError:
                pass

    async def _end(self, end: SessionEnd) -> None:
        """Close the log and store how it ended, all in one transaction; return when it is durable."""
        session, log = self._session, self._log
        if log.lost is not None:
            logger.warning("session lost: %s", log.lost, extra={"session": str(session.id)})
            return
        if end.state is SessionState.SUSPENDED:
            await self._suspend(end)
            return
        completion_tokens = log.last_seq
        session.move(end.state)
        at = now()
        terminal: dict[str, Any] = {
            "state": end.state.value,
            "finish_reason": end.finish_reason,
            "prompt_tokens": session.prompt_tokens,
            "cached_prompt_tokens": session.cached_prompt_tokens,
        }
        if end.error is not None:
            terminal["error"] = end.error
        log.record(
            session_changed(
                session.id,
                state=end.state.value,
                finish_reason=end.finish_reason,
                error_code=end.error["code"] if end.error else "",
                cause=end.cause,
                evidence=end.evidence,
                completion_tokens=completion_tokens,
                prompt_tokens=session.prompt_tokens,
                discarded_tokens=self._discarded,
                failovers=self._failovers,
                evidence_of_delivery=self._evidence(),
                ended_at=at,
            ),
            record_event(session.id, end.state.value, completion_tokens + 1, at, cause=end.cause),
            Record(
                RecordKind.OUTBOX,
                {"session_id": session.id, "kind": "session_ended", "created_at": at, "data": {}},
            ),
        )
        log.close(terminal, max(self._attempts, 1))
        await self._stored()

    async def _suspend(self, end: SessionEnd) -> None:
        """Let go of the engine and keep the log: somebody may come back and continue it."""
        session, log = self._session, self._log
        session.move(SessionState.SUSPENDED)
        at = now()
        log.record(
            session_changed(
                session.id,
                state=session.state.value,
                cause=end.cause,
                completion_tokens=log.last_seq,
                prompt_tokens=session.prompt_tokens,
                discarded_tokens=self._discarded,
                failovers=self._failovers,
                evidence_of_delivery=self._evidence(),
                suspended_at=at,
                resume_until=at + timedelta(seconds=conf().resume_window),
            ),
            record_event(session.id, "suspended", log.last_seq, at, cause=end.cause),
            Record(
                RecordKind.OUTBOX,
                {
                    "session_id": session.id,
                    "kind": "session_suspended",
                    "created_at": at,
                    "data": {},
                },
            ),
        )
        await self._stored()

    async def _stored(self) -> None:
        try:
            await self._log.flushed()
        except GatewayError as exc:
            logger.warning(
                "the end was not stored: %s", exc, extra={"session": str(self._session.id)}
            )

    def _evidence(self) -> str | None:
        """None where nothing is known here: what is stored, from before a takeover, stands."""
        evidence = self._session.evidence
        return None if evidence is Evidence.NONE else evidence.name.lower()


CREATION_SECONDS = 10.0
"""How long a new session may wait for the journal before its client is told."""

MAX_UNWRITTEN = 2000
"""Tokens of one session that may wait for the journal before its engine is read no further."""


def _completed(finish_reason: str) -> SessionEnd:
    return SessionEnd(SessionState.COMPLETED, finish_reason=finish_reason)


def _failed(error: GatewayError, cause: str) -> SessionEnd:
    return SessionEnd(SessionState.FAILED, cause=cause, error=error.as_openai()["error"])


def _rejection(exc: RejectedByEngine) -> GatewayError:
    words = exc.message.lower()
    if "context" in words and ("exceed" in words or "length" in words or "maximum" in words):
        return ContextLengthExceeded(exc.message)
    return EngineRejected(f"The engine refused the request: {exc.message}")
