"""Limits in Redis: the scripts of ``runtime.limit_scripts``, called with the terms of the core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar
from uuid import UUID

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streaming.core.limits import Ask, Debit, Rate, Turn
from streaming.core.local_limits import RANKS
from streaming.runtime import limit_scripts as scripts

REDIS_SECONDS = 2.0
"""How long a call may take. Only new requests wait for one, and no other after one that took longer."""
CONNECTIONS = 16
AT_ONCE = 500
"""Sessions in one call: while a script runs, Redis does nothing else."""

T = TypeVar("T")
Scopes = Iterable[tuple[str, int]]


class RedisLimits:
    """Raises ``redis.RedisError`` or ``OSError`` from every method. Leases are in microseconds, ``kept``
    is in seconds."""

    def __init__(
        self, url: str, *, slot_lease: int, place_lease: int, places: int, kept: int
    ) -> None:
        # No call is repeated by itself: what has been taken from a bucket may have been taken.
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=2 * REDIS_SECONDS,
            socket_timeout=REDIS_SECONDS,
            socket_connect_timeout=REDIS_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = redis.Redis.from_pool(pool)
        self._slot_lease, self._place_lease = slot_lease, place_lease
        self._places, self._kept = places, kept
        self._admit = self._client.register_script(scripts.ADMIT)
        self._give_back = self._client.register_script(scripts.GIVE_BACK)
        self._debit = self._client.register_script(scripts.DEBIT)
        self._queue = self._client.register_script(scripts.QUEUE)
        self._renew = self._client.register_script(scripts.RENEW)
        self._release = self._client.register_script(scripts.RELEASE)

    async def close(self) -> None:
        await self._client.aclose()

    async def admit(self, rates: Sequence[Rate]) -> tuple[bool, list[int]]:
        """As ``LocalLimits.admit``."""
        admitted, _, *levels = await self._admit(*_buckets(rates))
        return bool(admitted), levels

    async def give_back(self, rates: Sequence[Rate]) -> None:
        """As ``LocalLimits.give_back``."""
        await self._give_back(*_buckets(rates))

    async def debit(self, debits: Sequence[Debit]) -> set[UUID]:
        """As ``LocalLimits.debit``."""
        unknown: set[UUID] = set()
        for some in _parts(debits):
            told: Iterable[Iterable[Any]] = (
                (str(d.session_id), d.base, d.mark, _joined(d.tokens)) for d in some
            )
            found = await self._debit(args=[self._kept, *chain.from_iterable(told)])
            unknown.update(_ids(found))
        return unknown

    async def queue(self, tenant: str, asks: Sequence[Ask]) -> list[Turn]:
        """As ``LocalLimits.queue``."""
        told: Iterable[Iterable[Any]] = (
            (
                str(ask.session_id), ask.user, RANKS[ask.level], _joined(ask.slots),
                _joined(ask.tokens), int(ask.is_new),
            )
            for ask in asks
        )  # fmt: skip
        lead: list[Any] = [tenant, self._slot_lease, self._place_lease, self._places, self._kept]
        found = await self._queue(args=[*lead, *chain.from_iterable(told)])
        return [Turn(value) for value in found]

    async def renew(self, asks: Sequence[Ask]) -> set[UUID]:
        """As ``LocalLimits.renew``."""
        unknown: set[UUID] = set()
        for some in _parts(asks):
            told: Iterable[Iterable[Any]] = (
                (str(ask.session_id), _joined(ask.slots), _joined(ask.tokens)) for ask in some
            )
            found = await self._renew(
                args=[self._slot_lease, self._kept, *chain.from_iterable(told)]
            )
            unknown.update(_ids(found))
        return unknown

    async def release(self, released: Sequence[tuple[UUID, bool]]) -> None:
        """As ``LocalLimits.release``."""
        for some in _parts(released):
            told: Iterable[Iterable[Any]] = (
                (str(session_id), int(forget)) for session_id, forget in some
            )
            await self._release(args=[*chain.from_iterable(told)])

    async def connect_again(self) -> None:
        """Whether it is there, on a new connection: the old ones may have ended with the old server."""
        await self._client.connection_pool.disconnect(inuse_connections=False)
        await self._client.ping()


def _buckets(rates: Sequence[Rate]) -> tuple[list[str], list[int]]:
    keys = [f"{scripts.PREFIX}rate:{rate.name}" for rate in rates]
    return keys, [value for rate in rates for value in (rate.per_minute, rate.amount)]


def _joined(scopes: Scopes) -> str:
    return " ".join(f"{name}={limit}" for name, limit in scopes)


def _ids(found: Iterable[bytes]) -> set[UUID]:
    return {UUID(session_id.decode()) for session_id in found}


def _parts(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for first in range(0, len(items), AT_ONCE):
        yield items[first : first + AT_ONCE]
