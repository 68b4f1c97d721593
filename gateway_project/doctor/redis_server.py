"""Redis: hints between processes, limits, and the queue of tasks."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from channels.layers import get_channel_layer
from django.conf import settings

from gateway_project.doctor.clocks import difference
from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from gateway_project.doctor.postgres import judge_clock

SECONDS = 3.0
PINGS = 21
SLOW = 0.005
FIRST_WITH_TIMEOUT = 8
"""The first redis-py whose sockets time out by themselves, after as long as the layer's read blocks."""
DOC = "docs/operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """``round_trip`` and ``clock_offset``: seconds; ``info``: what INFO says."""

    round_trip: float
    clock_offset: float
    info: Mapping[str, Any]


# --- reading ----------------------------------------------------------------------------------------


def client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=None
    )


def look() -> Iterator[Finding]:
    if not settings.REDIS_URL:
        yield failure(
            "reachable",
            "there is no REDIS_URL: processes cannot wake each other, and no task runs",
            "Set REDIS_URL=redis://:password@host:port/0.",
        )
        return
    yield judge_socket_timeout(settings.CHANNEL_LAYERS, redis.__version__)
    try:
        with client() as connection:
            server = read_server(connection)
    except (redis.RedisError, OSError) as exc:
        yield failure(
            "reachable",
            f"no answer: {exc}",
            "Streams go on and are resumed more slowly; limits are counted by each process for itself; nothing "
            "is settled. See that it runs, and that REDIS_URL has its address and password.",
        )
        return
    yield from judge_server(server)
    yield asyncio.run(_channel_layer())


def read_server(connection: redis.Redis) -> Server:
    """Raises ``RedisError`` and ``OSError``."""
    trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        connection.ping()
        trips.append(time.perf_counter() - began)
    before = time.time()
    seconds, micros = connection.time()
    after = time.time()
    info: Any = connection.info()
    return Server(
        round_trip=statistics.median(trips),
        clock_offset=difference(seconds + micros / 1e6, before, after),
        info=info,
    )


async def _channel_layer() -> Finding:
    """One message there and back, by the layer that the gateways use."""
    layer: Any = get_channel_layer()
    channel = await layer.new_channel("doctor")
    began = time.perf_counter()
    try:
        async with asyncio.timeout(SECONDS):
            await layer.send(channel, {"type": "doctor"})
            await layer.receive(channel)
    except (TimeoutError, redis.RedisError, OSError) as exc:
        return failure(
            "channel layer",
            f"a message did not arrive: {type(exc).__name__}",
            "Look at the server's memory and log.",
        )
    finally:
        await layer.close_pools()
    return ok(
        "channel layer", f"{(time.perf_counter() - began) * 1000:.1f} ms from process to process"
    )


# --- judging ----------------------------------------------------------------------------------------


def judge_socket_timeout(layers: Mapping[str, Any], version: str) -> Finding:
    """Without ``socket_timeout: None`` every idle consumer dies after 5 s (channels_redis#422)."""
    hosts = layers.get("default", {}).get("CONFIG", {}).get("hosts", [])
    bare = [
        host
        for host in hosts
        if not isinstance(host, dict) or host.get("socket_timeout", 0) is not None
    ]
    if bare and int(version.partition(".")[0]) >= FIRST_WITH_TIMEOUT:
        return failure(
            "socket timeout",
            f"redis-py {version} ends the channel layer's reads after 5 s",
            "Give each host of CHANNEL_LAYERS `socket_timeout: None`.",
        )
    return ok("socket timeout", "the channel layer's reads do not time out")


def judge_server(server: Server) -> Iterator[Finding]:
    info = server.info
    name = info.get("server_name", "redis")
    yield ok("version", f"{name} {info.get(f'{name}_version', info.get('redis_version', '?'))}")
    trip = f"{server.round_trip * 1000:.2f} ms there and back"
    yield (
        ok("round trip", trip)
        if server.round_trip < SLOW
        else warning(
            "round trip",
            trip,
            "Put it into the gateways' zone; limits are asked before each answer.",
            DOC,
        )
    )
    yield from judge_memory(info)
    yield judge_clock("clock", "Redis's", server.clock_offset)
    if info.get("role") not in ("master", None):
        yield failure(
            "writable", f"it is a {info['role']}", "REDIS_URL must lead to the primary.", DOC
        )
    if info.get("aof_enabled"):
        yield note(
            "persistence",
            "is on",
            "Not needed: it holds hints, limits and messages to tasks; nothing is lost with it.",
        )


def judge_memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Eviction may take slots of limits and messages to tasks."""
    policy, most, used = (
        info.get("maxmemory_policy", "?"),
        info.get("maxmemory", 0),
        info.get("used_memory", 0),
    )
    if policy not in ("noeviction", "?"):
        yield warning(
            "maxmemory-policy",
            f"is {policy}: a full server drops limits' slots and messages to tasks",
            "CONFIG SET maxmemory-policy noeviction, and give it enough memory.",
            DOC,
        )
    else:
        yield ok("maxmemory-policy", policy)
    if evicted := info.get("evicted_keys", 0):
        yield warning("evictions", f"{evicted} keys since it started", "Raise maxmemory.", DOC)
    if most and used > most * 0.9:
        yield warning("memory", f"{used / most:.0%} of maxmemory is used", "Raise maxmemory.", DOC)
