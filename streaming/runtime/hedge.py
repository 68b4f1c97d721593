"""A second attempt beside one that has gone silent; the first to produce the next token goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from streaming import metrics
from streaming.core.failures import AttemptFailed, Cause
from streaming.fleet.continuations import Booking
from streaming.fleet.suspicion import QUIET
from streaming.runtime.attempt import AttemptRun
from streaming.runtime.journal import record_event
from streaming.runtime.live import LiveSession
from streaming.runtime.placement import Placement
from streaming.runtime.preparation import Preparation
from streaming.runtime.records import now
from streaming.runtime.shared import Shared

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""After a hedge that failed."""


class Hedge:
    """``run`` is set once it is prepared; ``task`` runs it and returns its finish reason.

    ``patience``: how many times what is usual it may take to its first token before a third node is
    asked. It doubles each time: were all nodes slower than usual, none would ever come to it.
    """

    __slots__ = ("booking", "first", "patience", "run", "task")

    def __init__(self, first: AttemptRun, booking: Booking, patience: float) -> None:
        self.first = first
        self.booking = booking
        self.patience = patience
        self.run: AttemptRun | None = None
        self.task: asyncio.Task[str]

    def __repr__(self) -> str:
        return f"<Hedge of attempt {self.first.number} on {self.booking.node.name}>"

    def lose(self) -> None:
        """Whatever it still produces is not wanted."""
        if self.run is not None:
            self.run.is_overtaken = True
        self.task.cancel()


class Hedging:
    """The hedges of one session, at most one at a time.

    ``watched`` runs an attempt as the runner does; ``prepared`` is called when a hedge is ready that
    has become the only attempt meanwhile.
    """

    def __init__(
        self,
        session: LiveSession,
        shared: Shared,
        placement: Placement,
        preparation: Preparation,
        watched: Callable[[AttemptRun], Awaitable[str]],
        prepared: Callable[[AttemptRun], None],
    ) -> None:
        self._session = session
        self._shared = shared
        self._placement = placement
        self._preparation = preparation
        self._watched = watched
        self._prepared = prepared
        self._pending: Hedge | None = None
        self._lost: set[asyncio.Task[str]] = set()
        self._not_before = 0.0

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def begin(self, first: AttemptRun) -> None:
        """Try it elsewhere as well, if there is a place now."""
        loop_time = asyncio.get_running_loop().time()
        if (
            self._pending is not None
            or loop_time < self._not_before
            or not self._shared.continuations.may_go_elsewhere(self._session.model, first.node)
            or not self._shared.fleet.switches(self._session.model, first.node).hedging
        ):
            return
        booking = self._placement.beside(first.node)
        if booking is not None:
            self._begin(first, booking, 1.0)

    def begin_again(self, silent: AttemptRun) -> None:
        """The hedge is silent, too: have a third node try, if there is a place now."""
        hedge = self._pending
        if hedge is None or silent is not hedge.run or hedge.first.is_overtaken:
            return
        booking = self._placement.beside(hedge.first.node, silent.node)
        if booking is not None:
            metrics.hedge("failed")
            self._give_up(hedge)
            self._begin(hedge.first, booking, 2 * hedge.patience)

    def _begin(self, first: AttemptRun, booking: Booking, patience: float) -> None:
        first.is_hedged = True
        self._pending = hedge = Hedge(first, booking, patience)
        hedge.task = asyncio.create_task(self._run(hedge), name="hedge")
        hedge.task.add_done_callback(lambda _: self._ended(hedge))
        self._note("hedged", hedge, silent_ms=round(_waited(first) * 1000))

    async def _run(self, hedge: Hedge) -> str:
        self._session.sign_log()  # whoever has seen the silence began this task
        try:
            async with self._shared.turns.next() as turn:
                run = await self._preparation.attempt(hedge.booking, turn, "hedge")
                if not isinstance(run, AttemptRun):
                    raise AttemptFailed(Cause.MISMATCH, "the node has no room for this answer")
                run.failed_at = run.silent_since = hedge.first.last_data
                run.patience = hedge.patience
                hedge.run = run
                if hedge is not self._pending:
                    self._prepared(run)
                return await self._watched(run)
        finally:
            hedge.booking.end()

    def may_append(self, run: AttemptRun) -> bool:
        """Before the first token of an attempt: False if another one has been faster.

        A hedge that gets here first overtakes the attempt that it was started beside.
        """
        hedge = self._pending
        if hedge is not None and run is hedge.run:
            hedge.first.overtake()
            metrics.hedge("won")
            self._explain(hedge.first)
            self._note("hedge_won", hedge)
        return not run.is_overtaken

    def _explain(self, first: AttemptRun) -> None:
        """It did not fail, but it was silent for longer than its reader was to wait."""
        cause = Cause.STALLED if first.has_begun else Cause.NO_FIRST_TOKEN
        silence = _waited(first)
        what = "data" if first.awaited_since is None else "token"
        failure = AttemptFailed(
            cause, f"no {what} for {silence:.1f} s", evidence=first.generation.watch.facts()
        )
        self._shared.attributor.failed(
            first.node, self._session.id, first.number, failure, silence, overtaken=True
        )

    def first_moved(self, first: AttemptRun) -> None:
        """Data came on the attempt that is hedged: it was only slow."""
        first.is_hedged = False
        hedge, self._pending = self._pending, None
        if first.has_begun:
            now = asyncio.get_running_loop().time()
            first.node.leniency.note(now - first.last_data - QUIET, now)
        if hedge is not None:
            metrics.hedge("lost")
            self._give_up(hedge)
            self._note("hedge_lost", hedge)

    def _give_up(self, hedge: Hedge) -> None:
        hedge.lose()
        self._lost.add(hedge.task)
        hedge.task.add_done_callback(self._lost.discard)

    def promote(self) -> Hedge | None:
        """The hedge becomes the only attempt: the first was overtaken, or has failed."""
        hedge, self._pending = self._pending, None
        if hedge is not None and not hedge.first.is_overtaken:
            metrics.hedge("won")
        return hedge

    async def end(self) -> None:
        """Nothing may go on when the session does not."""
        tasks = set(self._lost)
        if self._pending is not None:
            tasks.add(self._pending.task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, hedge: Hedge) -> None:
        """A hedge that failed by itself has no say; the first attempt goes on."""
        failure = None if hedge.task.cancelled() else hedge.task.exception()
        if hedge is self._pending and not hedge.first.is_overtaken:
            self._pending = None
            hedge.first.is_hedged = False
            metrics.hedge("failed")
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS
            why = type(failure).__name__  # never the engine's words: they may quote the request
            if isinstance(failure, AttemptFailed):
                why = failure.cause.value
                node = hedge.booking.node
                self._placement.note_failure(node)
                self._shared.fleet.attempt_failed(node, failure.cause, failure.retry_after)
            logger.info("a hedge failed: %s", why, extra={"node": hedge.booking.node.name})

    def _note(self, kind: str, hedge: Hedge, **data: Any) -> None:
        log = self._session.log
        log.note(
            record_event(
                self._session.id, kind, log.last_seq, now(),
                node=hedge.booking.node.name, silent=hedge.first.node.name, **data,
            )
        )  # fmt: skip


def _waited(first: AttemptRun) -> float:
    """Seconds for which the answer has stood still by this attempt."""
    since = first.last_data if first.awaited_since is None else first.awaited_since
    return asyncio.get_running_loop().time() - since
