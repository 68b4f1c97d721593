"""Makes the attempts of a session: what an engine is asked, and how much there is left to ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from streaming.core.levels import engine_priority
from streaming.core.seams import SeamGrade
from streaming.engines.base import Generation
from streaming.errors import ContextLengthExceeded
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Node
from streaming.ports import ports
from streaming.runtime.attempt import AttemptRun, Overseer
from streaming.runtime.continuation import Continuation
from streaming.runtime.ending import Tally
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.placement import Placement
from streaming.runtime.screening import screening_of
from streaming.runtime.shared import Shared
from streaming.runtime.turns import Turn


class Preparation:
    """``tally`` counts the attempts that it makes; ``overseer`` is told what they do."""

    def __init__(
        self,
        session: LiveSession,
        continuation: Continuation,
        placement: Placement,
        tally: Tally,
        overseer: Overseer,
        shared: Shared,
    ) -> None:
        self._session = session
        self._continuation = continuation
        self._placement = placement
        self._tally = tally
        self._overseer = overseer
        self._shared = shared

    async def attempt(
        self, booking: Booking, turn: Turn, kind: str
    ) -> AttemptRun | SessionEnd | None:
        """The next attempt; or the end, when the answer turns out to be full.

        None: the node turns out to have too little room, and another has more. Raises
        ``AttemptFailed`` or ``GatewayError``.
        """
        session, log, node = self._session, self._session.log, booking.node
        produced = log.last_seq
        grade, prompt, known = await self._continuation.plan(node)
        context = node.models.get(session.model)
        size = prompt_size = await self._continuation.size(node, prompt, context)
        begins_anew = grade is SeamGrade.REGENERATED
        if not begins_anew:
            size -= produced
        remaining = session.request.budget.remaining(size, produced, context)
        if remaining == 0:
            if self._placement.is_unfit(node):
                return None
            if produced == 0:
                raise ContextLengthExceeded(
                    f"The prompt has {size} tokens; the model's context is {context}."
                )
            return SessionEnd.completed("length")
        if begins_anew and remaining is not None:
            remaining += produced
        screening = await screening_of(session, self._shared.rules, self._shared.pool, grade)
        self._tally.attempts += 1
        number = self._tally.attempts
        span = None
        if ports.tracing is not None:
            span = ports.tracing.attempt(
                session.trace,
                session.model,
                session_id=str(session.id),
                attempt=number,
                kind=kind,
                node=node.name,
                engine=node.dialect.name,
                url=node.base_url,
            )
        generation = Generation(
            model=session.model,
            prompt=prompt,
            max_tokens=remaining,
            min_tokens=session.request.budget.still_required(0 if begins_anew else produced),
            sampling=replace(session.request.sampling, seed=session.seed),
            request_id=f"{session.id}-{number}",
            prompt_cache=node.options.prompt_cache == "on",
            priority=self._priority(node),
            traceparent=span.traceparent if span is not None else "",
            produced=Counter(log.token_ids)
            if session.request.sampling.has_penalties and not begins_anew
            else Counter(),
        )
        return AttemptRun(
            session=session,
            node=node,
            number=number,
            kind=kind,
            grade=grade if produced else None,
            generation=generation,
            known=known,
            overseer=self._overseer,
            booking=booking,
            turn=turn,
            prompt_size=prompt_size,
            screening=screening,
            span=span,
        )

    def _priority(self, node: Node) -> int | None:
        if node.options.priority == "off":
            return None
        is_continuation = self._tally.attempts > 1 or self._session.log.last_seq > 0
        return engine_priority(self._session.principal.level, is_continuation=is_continuation)
