"""One gateway process: everything it runs, and its start and end."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import httpx
import psycopg
from django.conf import settings
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core.nodes import parse_engine_nodes
from streaming.engines.http import engine_client
from streaming.errors import Overloaded, ShuttingDown
from streaming.fleet.environment import sync_environment_nodes
from streaming.fleet.nodes import Fleet
from streaming.fleet.watch import FleetWatch
from streaming.runtime import instance
from streaming.runtime.journal import Journal
from streaming.runtime.live import LiveSession
from streaming.runtime.runner import StreamRunner

logger = logging.getLogger(__name__)


class Gateway:
    """The running parts of this process. ``start()`` makes the one there is; ``current()`` finds it."""

    def __init__(
        self, instance_id: int, pool: AsyncConnectionPool, client: httpx.AsyncClient
    ) -> None:
        self.instance_id = instance_id
        self.pool = pool
        self.client = client
        self.fleet = Fleet()
        self.watch = FleetWatch(self.fleet, client, pool)
        self.journal = Journal(settings.DATABASE_DIRECT_URL or settings.DATABASE_URL, instance_id)
        self.sessions: dict[UUID, LiveSession] = {}
        self.draining = False
        self._heart: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Gateway {self.instance_id}: {len(self.sessions)} sessions, {self.journal!r}>"

    def admit(self) -> None:
        """Raises ``ShuttingDown`` or ``Overloaded`` when no new session may start here."""
        if self.draining:
            raise ShuttingDown(retry_after=1)
        if len(self.sessions) >= conf().max_streams:
            raise Overloaded(retry_after=1)

    def run(self, session: LiveSession) -> None:
        """Start the runner of a session that is durably created."""
        runner = StreamRunner(session, self.fleet, self.watch, self.journal, self.pool)
        session.task = asyncio.create_task(runner.run(), name=f"runner {session.reference}")
        # A session that somebody else owns now, or that can't be stored, must leave its engine.
        session.log.on_lost = session.task.cancel
        self.sessions[session.id] = session
        session.task.add_done_callback(lambda _: self.sessions.pop(session.id, None))

    async def drain(self, timeout: float) -> None:
        """Take no new sessions, and wait up to ``timeout`` seconds for the live ones to end."""
        self.draining = True
        tasks = [session.task for session in self.sessions.values() if session.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def stop(self) -> None:
        """Stop everything that ``start`` has started; what is pending is written first."""
        tasks = [session.task for session in self.sessions.values() if session.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await self.watch.stop()
        await self.journal.stop()
        try:
            await instance.retire(self.pool, self.instance_id)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.warning("the end of this process was not noted: %s", exc)
        await self.client.aclose()
        await self.pool.close()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(conf().heartbeat_seconds)
            try:
                await instance.beat(self.pool, self.instance_id)
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("no heartbeat: %s", exc)

    async def begin(self) -> None:
        """Start the parts. Raises ``psycopg.Error`` when the database is away."""
        await self.journal.start()
        specs = parse_engine_nodes(",".join(settings.ENGINE_NODES))
        await sync_environment_nodes(self.pool, specs)
        await self.watch.start()
        self._heart = asyncio.create_task(self._beat_forever(), name="heartbeat")


_current: Gateway | None = None


async def start() -> Gateway:
    """Start the parts of this process on the running loop. Raises ``psycopg.Error``."""
    global _current
    pool = AsyncConnectionPool(
        settings.DATABASE_URL,
        min_size=1,
        max_size=8,
        timeout=5,
        open=False,
        kwargs={"autocommit": True, "application_name": "unbroken gateway"},
        check=AsyncConnectionPool.check_connection,
    )
    await pool.open()
    direct = settings.DATABASE_DIRECT_URL or settings.DATABASE_URL
    gateway = Gateway(await instance.register(direct), pool, engine_client())
    await gateway.begin()
    _current = gateway
    return gateway


def current() -> Gateway:
    """The gateway of this process. Raises ``ShuttingDown`` before its start."""
    if _current is None:
        raise ShuttingDown("This gateway process has not started yet.", retry_after=1)
    return _current
