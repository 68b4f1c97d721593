"""``/healthz`` (the process serves) and ``/readyz`` (it can take new sessions)."""

from __future__ import annotations

import asyncio

import psycopg
from django.conf import settings
from psycopg_pool import PoolTimeout
from redis import asyncio as redis
from redis.exceptions import RedisError

from streaming.consumers.base import StreamConsumer
from streaming.consumers.request import Request
from streaming.runtime.gateway import Gateway, current

PROBE_SECONDS = 2.0


class HealthConsumer(StreamConsumer):
    open_to_pages = False
    traced = False

    async def handle(self, request: Request) -> None:
        await self.respond_json(200, {"status": "ok"})


class ReadyConsumer(StreamConsumer):
    """Only the database decides; Redis or engines missing is ``degraded``: replay still works."""

    open_to_pages = False
    traced = False

    async def handle(self, request: Request) -> None:
        gateway = current()
        reasons = await asyncio.gather(_database(gateway), _redis())
        database, degraded = reasons[0], [reason for reason in reasons[1:] if reason]
        if not gateway.fleet.models():
            degraded.append("nodes: none is healthy")
        elif not gateway.fleet.takes_work():
            degraded.append("nodes: all that are healthy are being emptied")
        if gateway.draining:
            database = database or "the process is shutting down"
        status = "unavailable" if database else "degraded" if degraded else "ok"
        await self.respond_json(
            503 if database else 200,
            {"status": status, "reasons": [*([database] if database else []), *degraded]},
        )


async def _database(gateway: Gateway) -> str:
    try:
        async with asyncio.timeout(PROBE_SECONDS), gateway.pool.connection() as connection:
            await connection.execute("SELECT 1")
    except (psycopg.Error, PoolTimeout, TimeoutError) as exc:
        return f"database: {exc or type(exc).__name__}"
    if gateway.journal.down_seconds > 0:
        return "database: the journal is reconnecting"
    return ""


async def _redis() -> str:
    if not settings.REDIS_URL:
        return "redis: not configured"
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=PROBE_SECONDS)
    try:
        await client.ping()
    except (RedisError, OSError) as exc:
        return f"redis: {exc}"
    finally:
        await client.aclose()
    return ""
