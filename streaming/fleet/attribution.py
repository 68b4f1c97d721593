"""Finds out what lay behind failed attempts, and writes it down, beside the failover.

A failover never waits for this: ``Attributor.failed`` only notes what was seen. The failures of a
node in one moment are a burst; a little later, when its siblings, the probe and the exporters have
spoken too, all of it is judged (``core.attribution``) and stored in one statement.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core import log_fields
from streaming.core.attribution import Blame, Probe, attribute, attribute_end
from streaming.core.failures import AttemptFailed, Cause
from streaming.engines.base import Figures
from streaming.fleet.evidence import Sight, evidence_of, knock, probe_found
from streaming.fleet.exporters import Exporters, Findings
from streaming.fleet.nodes import Fleet, Health, Node

logger = logging.getLogger(__name__)

MOMENT_SECONDS = 1.0
"""What happens within it happens at once: siblings, and other nodes."""
EXPORTERS_SECONDS = 3.0
"""How long exporters may take to notice, where a node has any and its process may have ended."""
RETRY_SECONDS = 0.25
GIVE_UP_SECONDS = 120.0
"""A row that is not there by then, with the database up, never will be: its session was lost."""
MOST_WAITING = 20_000
"""Attributions that may wait for the database; the oldest are let go first."""
BATCH = 500
MOST_REMEMBERED = 5000

OF_ENGINES = frozenset({"failover_exhausted", "failover_off", "no_healthy_node", "seam_refused"})
"""Errors that end a session because of its last failed attempt."""

# Locked rows are passed over and tried again: the journal updates the same rows in an order of its
# own, and must never meet us in a deadlock.
_STORE = """
WITH given AS (SELECT * FROM jsonb_to_recordset(%s::jsonb) AS r(
    session_id uuid, number smallint, cause text, evidence jsonb, ends boolean)),
free AS (
    SELECT a.id, g.* FROM streaming_attempt a
    JOIN given g ON g.session_id = a.session_id AND g.number = a.number
    FOR UPDATE OF a SKIP LOCKED
), stored AS (
    UPDATE streaming_attempt a SET cause = free.cause, evidence = free.evidence
    FROM free WHERE a.id = free.id
    RETURNING a.session_id, a.number
), ended AS (
    SELECT s.id, g.* FROM streaming_streamsession s JOIN given g ON g.session_id = s.id AND g.ends
    WHERE s.state IN ('failed', 'suspended') AND s.error_code <> '' AND NOT EXISTS (
        SELECT FROM streaming_attempt n WHERE n.session_id = s.id AND n.number > g.number)
    FOR UPDATE OF s SKIP LOCKED
), explained AS (
    UPDATE streaming_streamsession s SET cause = ended.cause, evidence = ended.evidence
    FROM ended WHERE s.id = ended.session_id
    RETURNING s.id
)
SELECT g.session_id, g.number, stored.number IS NOT NULL,
    explained.id IS NOT NULL OR next.number IS NOT NULL,  -- or it was continued meanwhile
    coalesce(next.seam_grade, 'none')
FROM given g
LEFT JOIN stored ON stored.session_id = g.session_id AND stored.number = g.number
LEFT JOIN explained ON explained.id = g.session_id
LEFT JOIN streaming_attempt next ON next.session_id = g.session_id AND next.number = g.number + 1
"""


@dataclass(slots=True, eq=False)
class Failure:
    """One failed attempt. ``verdict`` None: not judged yet, or no interruption at all.

    ``was_overtaken``: it was only silent, and a hedge was faster.
    """

    node_name: str
    session_id: UUID
    number: int
    sight: Sight
    silence: float
    was_overtaken: bool = False
    verdict: tuple[Blame, dict[str, Any]] | None = None
    is_last: bool = False
    """Its session has broken off because of it."""
    is_stored: bool = False
    give_up_at: float = 0.0


@dataclass(slots=True, eq=False)
class Burst:
    """What failed on one node in one moment. ``streams``: those that were on it when it began."""

    node: Node
    began: float
    streams: int
    figures: Figures | None
    failures: list[Failure] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Burst of {len(self.failures)} of {self.streams} streams on {self.node.name}>"

    @property
    def is_of_the_network(self) -> bool:
        """Whether streams broke off or fell silent: what a network can do."""
        return any(failure.sight.cause in _BREAKS_OR_SILENCE for failure in self.failures)


_BREAKS_OR_SILENCE = frozenset(
    {Cause.RESET, Cause.CLOSED, Cause.REFUSED, Cause.STALLED, Cause.NO_FIRST_TOKEN}
)


class Attributor:
    """One for each gateway process. ``on_attributed`` gets cause, grade and node of each attempt;
    the grade is the seam's of the attempt that went on (``none``: nothing has by then).
    """

    def __init__(
        self,
        fleet: Fleet,
        pool: AsyncConnectionPool,
        on_attributed: Callable[[str, str, str], None] = lambda cause, grade, node: None,
    ) -> None:
        self._fleet = fleet
        self._pool = pool
        self._on_attributed = on_attributed
        self.exporters = Exporters(fleet)
        # The bursts that still gather, by node; those of the last moments, for what nodes share.
        self._gathering: dict[int, Burst] = {}
        self._recent: deque[Burst] = deque(maxlen=256)
        # Failures by session and number, so that a session that ends later finds its explanation.
        self._known: OrderedDict[tuple[UUID, int], Failure] = OrderedDict()
        self._waiting: deque[Failure] = deque()
        self._news = asyncio.Event()
        self._judges: set[asyncio.Task[None]] = set()
        self._writer: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Attributor: {len(self._judges)} bursts, {len(self._waiting)} to store>"

    def start(self) -> None:
        self.exporters.start()
        self._writer = asyncio.create_task(self._write_forever(), name="attributions")

    async def stop(self) -> None:
        """Judge at once what is still open, and try once to store it."""
        tasks = [*self._judges, *([self._writer] if self._writer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for burst in list(self._gathering.values()):
            self._close(burst)
            self._judge(burst, Probe.NOT_YET, Findings(), slice(None))
        try:
            await self._write()
        except (psycopg.Error, PoolTimeout) as exc:
            logger.info("%d attributions are not stored: %s", len(self._waiting), exc)
        await self.exporters.stop()

    # Called by the runners

    def failed(
        self,
        node: Node,
        session_id: UUID,
        number: int,
        failure: AttemptFailed,
        silence: float = 0.0,
        *,
        overtaken: bool = False,
    ) -> None:
        """An attempt has failed. ``silence``: seconds since its last data.

        Cheap: whole nodes fail at once. To be called when the attempt counts no longer among its
        node's ``in_flight``. Rehearsals and migrations may be told too; they are no interruptions.
        With ``overtaken`` it was silent, and a hedge was faster: an interruption only if its node
        turns out not to work.
        """
        burst = self._gathering.get(node.id)
        if burst is None:
            now = asyncio.get_running_loop().time()
            burst = Burst(node, now, node.in_flight + 1, node.figures)
            self._gathering[node.id] = burst
            self._recent.append(burst)
            name = f"attribution {node.name}"
            task = asyncio.create_task(self._attend(burst), name=name, context=log_fields.nobody())
            self._judges.add(task)
            task.add_done_callback(self._judges.discard)
        noted = Failure(node.name, session_id, number, Sight.of(failure), silence, overtaken)
        burst.failures.append(noted)
        self._known[session_id, number] = noted
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def end_cause(
        self, session_id: UUID, what: str, number: int = 0, failure: AttemptFailed | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Cause and evidence to store with a session's end that is not ``completed``.

        ``what``: its cause in the runtime's words, or the code of its error. ``number``,
        ``failure``: its last failed attempt; where that ended it and is not judged yet, the answer
        is what can be said at once, and the row is corrected when it is.
        """
        if failure is None or what not in OF_ENGINES:
            blame, evidence = attribute_end(what)
            return blame.value, evidence
        known = self._known.get((session_id, number))
        verdict = known.verdict if known else None
        if known is not None and verdict is None:
            known.is_last = True
        if verdict is None:
            verdict = attribute(evidence_of(Sight.of(failure))) or attribute_end(what)
        return verdict[0].value, {**verdict[1], "error": what}

    # Judging

    async def _attend(self, burst: Burst) -> None:
        try:
            await asyncio.sleep(MOMENT_SECONDS)
            self._close(burst)
            probe = await self._wait_for_probe(burst)
            findings = await self._ask_exporters(burst)
            for begin in range(0, len(burst.failures), 50):
                self._judge(burst, probe, findings, slice(begin, begin + 50))
                await asyncio.sleep(0)  # hundreds at once: streams must not wait for this
        except Exception:  # the edge of the task: what was seen is worth storing without the rest
            logger.exception("a burst could not be judged: %r", burst)
            self._close(burst)
            self._judge(burst, Probe.NOT_YET, Findings(), slice(None))

    def _close(self, burst: Burst) -> None:
        """Later failures on the node are another burst."""
        if self._gathering.get(burst.node.id) is burst:
            del self._gathering[burst.node.id]

    async def _wait_for_probe(self, burst: Burst) -> Probe:
        """What a probe, within its time, or a knock tells of the node."""
        node = burst.node
        deadline = burst.began + MOMENT_SECONDS + conf().health_timeout
        try:
            async with asyncio.timeout_at(deadline):
                while node.health is Health.SUSPECT:
                    await self._fleet.wait_for_change()
        except TimeoutError:
            pass
        found = probe_found(node.health, node.reason)
        if burst.is_of_the_network and found in (Probe.NOT_YET, Probe.NO_ANSWER):
            knocked = await knock(node.base_url, conf().engine_connect_timeout)
            if knocked is not Probe.NO_ANSWER:
                return knocked
        return found

    async def _ask_exporters(self, burst: Burst) -> Findings:
        """They see some things late: the kubelet writes down after seconds why a container ended."""
        deadline = burst.began + MOMENT_SECONDS + EXPORTERS_SECONDS
        while True:
            findings = await self.exporters.look(burst.node, burst.began)
            options = burst.node.options
            may_come = bool(options.pod or options.gpu_metrics) and burst.is_of_the_network
            if findings.speak or not may_come or asyncio.get_running_loop().time() >= deadline:
                return findings
            await asyncio.sleep(0.5)

    def _judge(self, burst: Burst, probe: Probe, findings: Findings, part: slice) -> None:
        shared = self._shared_evidence(burst, findings)
        shared["probe"] = probe
        if probe is not Probe.NOT_YET:
            shared["probe_after"] = asyncio.get_running_loop().time() - burst.began
        give_up_at = asyncio.get_running_loop().time() + GIVE_UP_SECONDS
        for failure in burst.failures[part]:
            if failure.verdict is not None or (failure.was_overtaken and probe is Probe.UP):
                continue
            failure.verdict = attribute(
                evidence_of(failure.sight, silence=failure.silence, **shared)
            )
            if failure.verdict is not None:
                failure.give_up_at = give_up_at
                self._waiting.append(failure)
        while len(self._waiting) > MOST_WAITING:
            dropped = self._waiting.popleft()
            logger.warning(
                "an attribution is let go: attempt %d",
                dropped.number,
                extra={"session_id": str(dropped.session_id)},
            )
        self._news.set()

    def _shared_evidence(self, burst: Burst, findings: Findings) -> dict[str, Any]:
        """What is the same for all of a burst, as fields of ``core.attribution.Evidence``."""
        node, failed = burst.node, len(burst.failures)
        then, now = burst.figures, node.figures
        progress = _progress(then, now)
        speaks = node.last_data > burst.began + MOMENT_SECONDS / 2
        alive = max(burst.streams - failed, 0)
        others = {
            other.node.id
            for other in self._recent
            if other.node is not node
            and abs(other.began - burst.began) <= MOMENT_SECONDS
            and other.is_of_the_network
        }
        return {
            "siblings_failed": failed - 1,
            "siblings_alive": alive if speaks or alive == 0 else None,
            "nodes_failed": len(others),
            "restarted": progress is not None and progress < 0,
            "progressed": None if progress is None else progress > 0,
            "waiting": None if now is None else now.waiting,
            "xids": findings.xids,
            "ecc_errors": findings.ecc_errors,
            "memory_used": findings.memory_used,
            "oom_killed": findings.oom_killed,
            "exit_code": findings.exit_code,
            "pod_restarts": findings.restarts,
            "pod_gone": findings.gone,
        }

    # Writing

    async def _write_forever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                is_left = await self._write() > 0
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("%d attributions wait for the database: %s", len(self._waiting), exc)
                is_left = True
            if is_left:
                await asyncio.sleep(RETRY_SECONDS)
                self._news.set()

    async def _write(self) -> int:
        """Store what can be stored; how many rows are not there yet, or locked.

        Raises ``psycopg.Error`` or ``PoolTimeout``, with everything kept.
        """
        todo = list(self._waiting)
        while todo:
            batch, todo = todo[:BATCH], todo[BATCH:]
            done = await self._store(batch)
            if done:
                self._waiting = deque(f for f in self._waiting if f not in done)
        return len(self._waiting)

    async def _store(self, batch: list[Failure]) -> set[Failure]:
        """Those of a batch that need no further try."""
        by_key = {(failure.session_id, failure.number): failure for failure in batch}
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(_STORE, (_rows(batch),))
                found = await cursor.fetchall()
        except (psycopg.DataError, psycopg.ProgrammingError):  # about what we sent: never better
            logger.exception("%d attributions cannot be stored", len(batch))
            return set(batch)
        now = asyncio.get_running_loop().time()
        done = {failure for failure in batch if now >= failure.give_up_at}
        for session_id, number, is_stored, is_explained, grade in found:
            failure = by_key[session_id, number]
            if is_stored and not failure.is_stored:
                failure.is_stored = True
                self._report(failure, grade)
            if failure.is_stored and (is_explained or not failure.is_last):
                done.add(failure)
        return done

    def _report(self, failure: Failure, grade: str) -> None:
        assert failure.verdict is not None
        try:
            self._on_attributed(failure.verdict[0].value, grade, failure.node_name)
        except Exception:  # whoever counts must not keep the rest from being stored
            logger.exception("an attribution could not be counted")


def _progress(then: Figures | None, now: Figures | None) -> float | None:
    """How far the engine's own counter has moved; negative: it began anew."""
    if then is None or now is None or then.asked_at == now.asked_at:
        return None
    return None if then.progress is None or now.progress is None else now.progress - then.progress


def _rows(batch: list[Failure]) -> str:
    rows = [
        {
            "session_id": str(failure.session_id),
            "number": failure.number,
            "cause": failure.verdict[0].value,
            "evidence": failure.verdict[1],
            "ends": failure.is_last,
        }
        for failure in batch
        if failure.verdict is not None
    ]
    return orjson.dumps(rows).decode()
