"""Whether Celery's beat and worker live: nothing urgent waits for them, but somebody must notice.

Beat asks for a sweep every 2 s, the worker runs it and notes that in ``TaskRun``. When no run has
begun for a minute, the length of the queue tells which of the two is silent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import redis.asyncio as redis
from django.conf import settings
from psycopg_pool import AsyncConnectionPool
from redis.exceptions import RedisError

from streaming.runtime.incidents import IncidentKind, close_incident, open_incident

logger = logging.getLogger(__name__)

SWEEP = "reclaim_kv_cache"
SILENT_SECONDS = 60.0
CHECK_SECONDS = 10.0
REDIS_SECONDS = 2.0
SUBJECT = "celery"

_SECONDS_SINCE = """
SELECT extract(epoch FROM now() - started_at)::float8 FROM streaming_taskrun WHERE name = %s
"""

WORDS = {
    "beat": "Celery's beat asks for nothing: the queue is empty",
    "worker": "Celery's worker does nothing: the queue grows",
    "both": "Celery's beat and worker are silent: the queue neither grows nor shrinks",
    "unknown": "Celery's beat or worker is silent; the queue cannot be read",
}


class SweeperWatch:
    """Opens and closes the incident ``sweeper_silent``; any number of gateways may watch."""

    def __init__(self, pool: AsyncConnectionPool, broker_url: str) -> None:
        self._pool = pool
        self._broker_url = broker_url
        self._since = asyncio.get_running_loop().time()
        self._next = self._since + CHECK_SECONDS
        self._queue: int | None = None
        self._silent = ""

    def __repr__(self) -> str:
        return f"<SweeperWatch {self._silent or 'all well'}>"

    async def check(self) -> None:
        """Look, if it is time to. Raises ``psycopg.Error`` or ``PoolTimeout``."""
        loop_time = asyncio.get_running_loop().time()
        if loop_time < self._next:
            return
        self._next = loop_time + CHECK_SECONDS
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_SECONDS_SINCE, (SWEEP,))
            row = await cursor.fetchone()
            since_run = row[0] if row else float("inf")
            # A gateway that has just started knows of no silence before it.
            seconds = min(since_run, loop_time - self._since)
            if seconds >= SILENT_SECONDS:
                await self._note_silence(connection, seconds)
                return
            self._silent, self._queue = "", None
            if await close_incident(connection, IncidentKind.SWEEPER_SILENT, SUBJECT):
                logger.warning("Celery's beat and worker speak again")

    async def _note_silence(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], seconds: float
    ) -> None:
        former, self._queue = self._queue, await self._queue_length()
        silent = _who(former, self._queue)
        if not silent:  # the next look tells whether the queue grows
            return
        data = {"silent": silent, "seconds": round(seconds), "queue": self._queue}
        await open_incident(connection, IncidentKind.SWEEPER_SILENT, SUBJECT, data=data)
        if silent != self._silent:
            self._silent = silent
            logger.error("%s, for %.0f s", WORDS[silent], seconds)

    async def _queue_length(self) -> int | None:
        """The tasks that wait for a worker; None where they can't be counted."""
        if not self._broker_url:
            return None
        client = redis.Redis.from_url(self._broker_url, socket_timeout=REDIS_SECONDS)
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                return await client.llen(settings.CELERY_TASK_DEFAULT_QUEUE)
        except (RedisError, OSError, TimeoutError) as exc:
            logger.info("the queue of tasks cannot be read: %s", exc)
            return None
        finally:
            await client.aclose()


def _who(former: int | None, queue: int | None) -> str:
    """Who is silent, from two lengths of the queue; empty while that can't be told yet."""
    if queue is None:
        return "unknown"
    if queue == 0:
        return "beat"
    if former is None:
        return ""
    return "worker" if queue > former else "both"
