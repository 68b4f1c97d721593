"""What this process measures of itself, once a second and when somebody scrapes.

Also what only the database knows, read now and then rather than by each scrape: ``/metrics`` must
answer while the database is away, and ten scrapers must not be ten times the load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from prometheus_client.metrics_core import Metric
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.fleet.continuations import Continuations
from streaming.metrics import catalogue as c
from streaming.metrics import stored as others
from streaming.metrics.plain import fold
from streaming.metrics.sessions import Record, SessionCount
from streaming.runtime.journal import Journal
from streaming.runtime.live import LiveSession

logger = logging.getLogger(__name__)

FOLD_SECONDS = 1.0
STORED_SECONDS = 10.0

TASKS = """
SELECT name, extract(epoch FROM now() - coalesce(succeeded_at, started_at))::float8, runs, failures
FROM streaming_taskrun
"""
FRAGMENTATION = """
SELECT node.key, (node.value ->> 'index')::float8
FROM streaming_taskrun t, jsonb_each(t.result -> 'nodes') AS node
WHERE t.name = 'defragment_nodes'
"""
INCIDENTS = "SELECT kind, count(*) FROM streaming_incident WHERE closed_at IS NULL GROUP BY kind"
SUSPENDED = "SELECT count(*) FROM streaming_streamsession WHERE state = 'suspended'"
DELIVERED = "SELECT session_id, delivered_seq FROM session_fence WHERE session_id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """``age``: seconds since it last succeeded, at the time of reading."""

    age: float
    runs: int
    failures: int


@dataclass(frozen=True, slots=True)
class StoredFigures:
    """What the database said at ``read_at`` (loop time)."""

    read_at: float
    tasks: Mapping[str, TaskFigures] = field(default_factory=dict)
    incidents: Mapping[str, int] = field(default_factory=dict)
    fragmentation: Mapping[str, float] = field(default_factory=dict)
    """By node, as last computed by the task that looks for it."""
    suspended: int = 0
    others: Sequence[Metric] = ()
    """Of whoever has registered figures of its own (``metrics.stored``)."""


class Measuring:
    """Of one gateway process. ``sessions`` are those that it owns, ``continuations`` its queue."""

    def __init__(
        self,
        sessions: Mapping[UUID, LiveSession],
        journal: Journal,
        continuations: Continuations,
        pool: AsyncConnectionPool,
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._continuations = continuations
        self._pool = pool
        self.count = SessionCount()
        self.stored: StoredFigures | None = None
        """None: not read yet."""
        self._undelivered: dict[UUID, Record] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Measuring {self.count!r}>"

    def start(self) -> None:
        c.PROCESSES.value = 1
        self.look()
        self._tasks = [
            asyncio.create_task(self._look_forever(), name="measuring"),
            asyncio.create_task(self._read_forever(), name="stored figures"),
        ]

    async def stop(self) -> None:
        """The last look."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        c.PROCESSES.value = c.WITHOUT_DATABASE.value = 0
        self.look()

    def look(self) -> None:
        """Bring all numbers of this process up to date."""
        states: Counter[str] = Counter()
        for session in self._sessions.values():
            states[session.state.value] += 1
            self.look_at(session)
        for state in c.LIVE_STATES:
            c.SESSIONS.set(states[state.value], state.value)
        c.RECOVERY_QUEUE.value = self._continuations.waiting
        c.JOURNAL_LAG.value = self._journal.lag_seconds
        c.WITHOUT_DATABASE.value = float(self._journal.down_seconds > 0)
        c.JOURNAL_PENDING.value = self._journal.pending_sessions
        fold()

    def figures(self) -> dict[str, int]:
        """For the live board: streams and their readers here now; and since this process began,
        tokens and failovers."""
        return {
            "streams": len(self._sessions),
            "readers": sum(len(session.readers) for session in self._sessions.values()),
            "tokens": int(c.GENERATED.value),
            "failovers": int(c.FAILOVERS.total),
        }

    def opened(self, session: LiveSession) -> None:
        """This process owns it from now on."""
        self.count.opened(session.id, session.log.last_seq, session.log.marks.delivered)

    def look_at(self, session: LiveSession) -> None:
        """Count the tokens that it has now."""
        log = session.log
        # The terminal record has a seq, and is no token.
        self.count.looked(session.id, log.last_seq - log.closed, log.marks.delivered)

    def delivery_stored(self, session_id: UUID, former: int, seq: int) -> None:
        """The stored mark of a session's delivery has moved from ``former`` to ``seq`` tokens."""
        session = self._sessions.get(session_id)
        if session is not None:  # what its flushes have stored is ours, not another process's
            self.look_at(session)
        self.count.stored(session_id, former, seq)

    def closed(self, session: LiveSession) -> None:
        """Its runner has ended."""
        self.look_at(session)
        now = asyncio.get_running_loop().time()
        self.count.closed(session.id, session.state, now, broke_off=bool(session.error_code))

    async def _look_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + FOLD_SECONDS
            await asyncio.sleep(FOLD_SECONDS)
            c.LOOP_DELAY.note(max(loop.time() - due, 0.0))
            self.look()

    async def _read_forever(self) -> None:
        while True:
            try:
                await self._read()
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("the stored figures cannot be read: %s", exc)
            await asyncio.sleep(STORED_SECONDS)

    async def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        self._undelivered |= self.count.undelivered(now)
        async with self._pool.connection() as connection:
            tasks = await (await connection.execute(TASKS)).fetchall()
            incidents = await (await connection.execute(INCIDENTS)).fetchall()
            fragmentation = await (await connection.execute(FRAGMENTATION)).fetchall()
            suspended = await (await connection.execute(SUSPENDED)).fetchall()
            if self._undelivered:
                cursor = await connection.execute(DELIVERED, (list(self._undelivered),))
                for session_id, seq in await cursor.fetchall():
                    self.count.wasted_on(self._undelivered[session_id], seq)
                self._undelivered = {}
            read = [await families.read(connection) for families in others.registered]
        self.stored = StoredFigures(
            now,
            {name: TaskFigures(*figures) for name, *figures in tasks},
            dict(incidents),
            dict(fragmentation),
            suspended[0][0],
            [family for families in read for family in families],
        )
