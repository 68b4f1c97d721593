"""What becomes of an attempt at its engine: aborted, and seen to be gone.

Closing the connection makes every engine let go, as a rule. This module does not rely on it: it
aborts by id where there is a call for that, and looks at the node's own figures until nothing runs
there that no gateway has. ``core.reclaim`` says what the figures prove, ``docs/kv-cache.md`` what
they can't. Whoever takes a dead process's sessions over looks after their attempts too. What is still
open when the process ends is swept up by ``services.reclaim``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Literal
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming import metrics
from streaming.core import log_fields
from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.core.reclaim import (
    OVERDUE_SECONDS,
    SURE_SECONDS,
    YOUNG_SECONDS,
    Look,
    Verdict,
    was_restarted,
)
from streaming.engines.base import Figures
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.runtime.incidents import CLOSE_RECLAIMED, IncidentKind, open_incident
from streaming.runtime.records import now

logger = logging.getLogger(__name__)

# An engine lets go within 0.05 to 0.15 s of a closed connection, as measured.
FIRST_LOOK = 0.02
# Where streams have just failed, those that go on elsewhere come first; its probe asks it already.
SUSPECT_PAUSE = 0.15
LEAST_PAUSE = 0.1
LONGEST_PAUSE = 0.25
# The pause between looks at what has been there for so long already (seconds of age, pause).
LATER_PAUSES = ((60.0, 5.0), (OVERDUE_SECONDS, 1.0))
FIGURES_SECONDS = 2.0
ABORT_SECONDS = 2.0
ABORT_AGAIN_SECONDS = 1.0
ABORTS_AT_ONCE = 1000
# A node that says nothing for so long is unverifiable. Its probes may know it sooner.
SILENT_SECONDS = 2.0
# A node so busy that its figure never falls to our own.
UNPROVEN_SECONDS = 30.0
# From then on the sweep alone looks on.
FORGET_SECONDS = 600.0
MOST_REMEMBERED = 20_000
# The journal writes the end of an attempt up to 0.25 s after it.
WRITE_SECONDS = 0.3
WRITES_AT_ONCE = 1000
MOST_WRITES = 60

Outcome = Literal["verified", "unverifiable", "overdue"]
ENGINE_ERRORS = (AttemptFailed, RejectedByEngine, TimeoutError)

# Attempts whose end has not been written yet are not among what is returned.
_STORE = """
WITH told AS (
    SELECT * FROM unnest(%s::uuid[], %s::int4[], %s::text[], %s::timestamptz[])
        AS t(session_id, number, outcome, at)
), known AS (
    SELECT a.id, told.* FROM told
    JOIN streaming_attempt a ON a.session_id = told.session_id AND a.number = told.number
    WHERE a.ended_at IS NOT NULL
), stored AS (
    UPDATE streaming_attempt a SET reclaim = known.outcome,
        reclaimed_at = CASE WHEN known.outcome = 'verified' THEN greatest(known.at, a.ended_at) END
    FROM known WHERE a.id = known.id AND a.reclaim <> 'verified'
)
SELECT session_id, number FROM known
"""

_EVENT = """
INSERT INTO streaming_nodeevent (node_id, node_name, at, kind, data)
VALUES ((SELECT id FROM streaming_inferencenode WHERE id = %s), %s, now(), %s, %s::jsonb)
"""


@dataclass(slots=True, eq=False)
class Remnant:
    """An ended attempt that its engine may still be working on. Times are loop times.

    ``progress``: the engine's counter of its work when it was last seen to be the same process.
    ``of_the_dead``: it was another process's, which may be among the others' for a moment still.
    """

    session_id: UUID
    number: int
    request_id: str
    ended_at: float
    progress: float | None
    of_the_dead: bool = False
    said: str = "pending"
    aborted_at: float | None = None


@dataclass(slots=True, eq=False)
class NodeWatch:
    """One node's remnants, oldest first, and the task that looks after them."""

    node: Node
    next_look: float
    left: list[Remnant] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    last_look: float = 0.0
    pause: float = FIRST_LOOK
    left_since: float | None = None
    """Since when every look has found more than there may be."""

    def __repr__(self) -> str:
        return f"<NodeWatch {self.node.name}: {len(self.left)} left>"


@dataclass(slots=True)
class _Told:
    outcome: str
    at: datetime
    node: Node
    writes: int = 0


class Reclaimer:
    """Aborts and verifies, one task for each node that has something left; none when there is none.

    ``on_outcome(node name, seconds, outcome)`` is called whenever something is known of an attempt;
    once it is verified, with the seconds since its end.
    """

    def __init__(
        self,
        fleet: Fleet,
        pool: AsyncConnectionPool,
        on_outcome: Callable[[str, float | None, Outcome], None] = metrics.reclaimed,
    ) -> None:
        self._fleet = fleet
        self._pool = pool
        self.on_outcome = on_outcome
        self._watches: dict[Node, NodeWatch] = {}
        self._outcomes: dict[tuple[UUID, int], _Told] = {}
        self._overdue: dict[Node, dict[str, Any]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Reclaimer {list(self._watches.values())}, {len(self._outcomes)} to write>"

    @property
    def waiting(self) -> int:
        """Attempts that have not been seen to be gone."""
        return sum(len(watch.left) for watch in self._watches.values())

    def ended(
        self,
        node: Node,
        session_id: UUID,
        attempt_number: int,
        engine_request_id: str,
        engine_finished: bool,
    ) -> None:
        """An attempt has ended, and its connection is closed.

        ``engine_finished``: the engine itself said that it was done; a stop string that the gateway
        found does not count. Returns at once.
        """
        if not engine_finished:
            self._look_after(node, session_id, attempt_number, engine_request_id)

    def left_behind(
        self, node_id: int | None, session_id: UUID, attempt_number: int, engine_request_id: str
    ) -> None:
        """A process has died in an attempt, and its connection with it. Returns at once."""
        node = self._fleet.nodes.get(node_id) if node_id is not None else None
        if node is not None:  # nobody can ask one that was removed; the sweep says so
            self._look_after(node, session_id, attempt_number, engine_request_id, of_the_dead=True)

    def _look_after(
        self,
        node: Node,
        session_id: UUID,
        attempt_number: int,
        engine_request_id: str,
        *,
        of_the_dead: bool = False,
    ) -> None:
        if self._stopping:
            return
        if self.waiting >= MOST_REMEMBERED:  # it stays pending, which the sweep looks for
            return
        loop_time = asyncio.get_running_loop().time()
        watch = self._watches.get(node)
        if watch is None:
            watch = self._watches[node] = NodeWatch(node, loop_time + FIRST_LOOK)
            self._spawn(self._watch(watch), f"reclaim {node.name}")
        progress = node.figures.progress if node.figures is not None else None
        watch.left.append(
            Remnant(session_id, attempt_number, engine_request_id, loop_time, progress, of_the_dead)
        )
        watch.arrived.set()

    async def stop(self) -> None:
        """End all tasks. What is known by now is written; all else stays as it is in the table."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watches.clear()
        if self._outcomes or self._overdue:
            await self._write()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name, context=log_fields.nobody())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # One node

    async def _watch(self, watch: NodeWatch) -> None:
        try:
            while watch.left:
                watch.arrived.clear()
                await self._abort(watch)
                if await self._is_time_to_look(watch):
                    await self._look(watch)
        except Exception:  # the edge of the task; the sweep finds what it leaves pending
            logger.exception("reclaim on %s broke off", watch.node.name)
        finally:
            del self._watches[watch.node]

    async def _is_time_to_look(self, watch: NodeWatch) -> bool:
        """Wait for the next look; False when more has ended meanwhile, which is aborted first."""
        loop = asyncio.get_running_loop()
        if watch.node.health is Health.SUSPECT:
            watch.next_look = max(watch.next_look, watch.left[0].ended_at + SUSPECT_PAUSE)
        if loop.time() >= watch.next_look:
            return True
        try:
            async with asyncio.timeout_at(watch.next_look):
                await watch.arrived.wait()
        except TimeoutError:
            return True
        soon = max(loop.time() + FIRST_LOOK, watch.last_look + LEAST_PAUSE)
        watch.next_look = min(watch.next_look, soon)
        watch.pause = min(watch.pause, LEAST_PAUSE)
        return False

    async def _abort(self, watch: NodeWatch) -> None:
        """Abort by id what is left, in one call; again when it is still there later."""
        node = watch.node
        if not node.can.abort or node.health is Health.DOWN:
            return
        loop_time = asyncio.get_running_loop().time()
        due = [
            remnant
            for remnant in watch.left
            if remnant.aborted_at is None or loop_time - remnant.aborted_at >= ABORT_AGAIN_SECONDS
        ][:ABORTS_AT_ONCE]
        if not due:  # an empty list would make vLLM abort everything
            return
        for remnant in due:
            remnant.aborted_at = loop_time
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await node.dialect.abort([remnant.request_id for remnant in due])
        except ENGINE_ERRORS as exc:
            logger.info("%s did not take an abort: %s", node.name, exc)

    async def _look(self, watch: NodeWatch) -> None:
        node = watch.node
        loop = asyncio.get_running_loop()
        before = node.in_flight + node.others_in_flight
        watch.last_look = asked_at = loop.time()
        figures = await self._figures(node)
        loop_time = loop.time()
        after = node.in_flight + node.others_in_flight
        if self._fleet.nodes.get(node.id) is not node:
            self._give_up(watch, watch.left)
        elif figures is None:
            watch.left_since = None
            for remnant in watch.left:
                silent = loop_time - remnant.ended_at > SILENT_SECONDS
                if node.health is not Health.UP or silent:
                    self._say(watch, remnant, "unverifiable")
        elif figures.running is None:
            self._give_up(watch, watch.left)
        else:
            look = Look(
                held=figures.running + (figures.waiting or 0),
                live_at_least=min(before, after),
                live_at_most=max(before, after),
                young=sum(loop_time - r.ended_at < YOUNG_SECONDS for r in watch.left),
                exclusive=node.options.exclusive == "on",
                healthy=node.health is Health.UP,
            )
            self._judge(watch, look, figures, asked_at, loop_time)
        self._give_up(watch, [r for r in watch.left if loop_time - r.ended_at > FORGET_SECONDS])
        self._plan_next_look(watch, loop_time)

    async def _figures(self, node: Node) -> Figures | None:
        try:
            async with asyncio.timeout(FIGURES_SECONDS):
                return await node.dialect.figures(FIGURES_SECONDS)
        except ENGINE_ERRORS as exc:
            logger.debug("no figures of %s: %s", node.name, exc)
            return None

    def _judge(
        self, watch: NodeWatch, look: Look, figures: Figures, asked_at: float, loop_time: float
    ) -> None:
        """Decide about each remnant what one look has shown."""
        verdict = look.verdict
        watch.left_since = (watch.left_since or loop_time) if verdict is Verdict.LEFT else None
        surely_left = watch.left_since is not None and loop_time - watch.left_since >= SURE_SECONDS
        remaining: list[Remnant] = []
        newly_overdue = 0
        for remnant in watch.left:
            age = loop_time - remnant.ended_at
            counted_at = self._fleet.others_known_at if remnant.of_the_dead else asked_at
            if remnant.ended_at > min(asked_at, counted_at):
                remaining.append(remnant)
                continue
            if verdict is Verdict.GONE or was_restarted(remnant.progress, figures.progress):
                self._verified(watch, remnant, age)
                continue
            remaining.append(remnant)
            if figures.progress is not None:
                remnant.progress = figures.progress
            if age < OVERDUE_SECONDS:
                continue
            if surely_left:
                newly_overdue += remnant.said != "overdue"
                self._say(watch, remnant, "overdue")
            elif verdict is Verdict.UNKNOWN and (
                not (look.healthy and look.exclusive) or age > UNPROVEN_SECONDS
            ):
                self._say(watch, remnant, "unverifiable")
        watch.left = remaining
        if verdict is Verdict.GONE:
            self._overdue.pop(watch.node, None)
        elif newly_overdue:
            overdue = [remnant for remnant in remaining if remnant.said == "overdue"]
            self._overdue[watch.node] = {
                "attempts": len(overdue),
                "surplus": look.surplus,
                "held": look.held,
                "ours": look.live_at_most,
                "request": overdue[0].request_id,
            }

    def _plan_next_look(self, watch: NodeWatch, loop_time: float) -> None:
        watch.pause = min(watch.pause * 2, LONGEST_PAUSE)
        youngest = loop_time - watch.left[-1].ended_at if watch.left else 0.0
        pause = next((pause for age, pause in LATER_PAUSES if youngest > age), watch.pause)
        watch.next_look = loop_time + pause

    # What is known

    def _verified(self, watch: NodeWatch, remnant: Remnant, seconds: float) -> None:
        self._say(watch, remnant, "verified", seconds)

    def _give_up(self, watch: NodeWatch, remnants: list[Remnant]) -> None:
        """Nothing more can be learnt of these here."""
        for remnant in remnants:
            if remnant.said == "pending":
                self._say(watch, remnant, "unverifiable")
        if remnants:
            given_up = set(remnants)
            watch.left = [remnant for remnant in watch.left if remnant not in given_up]

    def _say(
        self, watch: NodeWatch, remnant: Remnant, outcome: Outcome, seconds: float | None = None
    ) -> None:
        if remnant.said == outcome:
            return
        remnant.said = outcome
        self.on_outcome(watch.node.name, seconds, outcome)
        key = (remnant.session_id, remnant.number)
        self._outcomes[key] = _Told(outcome, now(), watch.node)
        if self._writer is None or self._writer.done():
            self._writer = self._spawn(self._write_until_done(), "reclaim outcomes")

    async def _write_until_done(self) -> None:
        while self._outcomes or self._overdue:
            await asyncio.sleep(WRITE_SECONDS)
            await self._write()

    async def _write(self) -> None:
        """Store outcomes, and open and close incidents. What fails is tried again."""
        try:
            async with self._pool.connection() as connection:
                await self._store_outcomes(connection)
                overdue, self._overdue = self._overdue, {}
                for node, data in overdue.items():
                    await _report(connection, node, data)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.info("what became of ended attempts is not stored yet: %s", exc)

    async def _store_outcomes(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        batch = dict(islice(self._outcomes.items(), WRITES_AT_ONCE))
        if not batch:
            return
        cursor = await connection.execute(
            _STORE,
            (
                [session_id for session_id, _ in batch],
                [number for _, number in batch],
                [told.outcome for told in batch.values()],
                [told.at for told in batch.values()],
            ),
        )
        stored = set(await cursor.fetchall())
        for key, told in batch.items():
            told.writes += 1
            # Its end was never written (somebody else has the session now): the sweep decides.
            if self._outcomes.get(key) is told:
                del self._outcomes[key]
                if key not in stored and told.writes < MOST_WRITES:
                    self._outcomes[key] = told
        verified = {told.node.id for key, told in batch.items() if told.outcome == "verified"}
        if verified:
            await connection.execute(CLOSE_RECLAIMED, (list(verified),))


async def _report(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], node: Node, data: dict[str, Any]
) -> None:
    """Requests that do not go: an incident, and the node's time line says so once."""
    kind = IncidentKind.KV_NOT_RECLAIMED
    if await open_incident(connection, kind, node.name, node_id=node.id, data=data):
        logger.error("%s still runs %s requests that nobody has", node.name, data["surplus"])
        await connection.execute(
            _EVENT, (node.id, node.name, kind, orjson.dumps({"by": "gateway", **data}).decode())
        )
