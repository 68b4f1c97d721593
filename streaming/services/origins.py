"""Which web pages may use the gateway: the allowed origins of each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.errors import OriginNotAllowed
from streaming.runtime.live import Principal

_ALL = """
SELECT DISTINCT origin FROM streaming_tenant, jsonb_array_elements_text(allowed_origins) AS origin
WHERE allowed_origins <> '[]'
"""


@dataclass(frozen=True, slots=True)
class _Known:
    origins: frozenset[str] = frozenset()
    until: float = 0.0


class AllowedOrigins:
    """Those of all tenants together, which is what is known of a page before it says who it is.

    Read at most once in ``auth_cache_seconds``, whatever origins strangers make up.
    """

    def __init__(self) -> None:
        self._known = _Known()
        self._reading: asyncio.Task[None] | None = None

    async def has(self, pool: AsyncConnectionPool, origin: str) -> bool:
        """Whether any tenant allows ``origin``. Raises what databases raise.

        All who ask while it is read are told what one reading has found, or that it has failed:
        with the database away nobody waits for the failures of those who asked before.
        """
        loop = asyncio.get_running_loop()
        if self._known.until <= loop.time():
            if self._reading is None or self._reading.done():
                self._reading = loop.create_task(self._read(pool), name="allowed origins")
            await asyncio.shield(self._reading)
        return origin in self._known.origins

    async def _read(self, pool: AsyncConnectionPool) -> None:
        async with pool.connection() as connection:
            cursor = await connection.execute(_ALL)
            found = frozenset(origin for (origin,) in await cursor.fetchall())
        until = asyncio.get_running_loop().time() + conf().auth_cache_seconds
        self._known = _Known(found, until)


allowed_origins = AllowedOrigins()
"""Of this process."""


def check_origin(principal: Principal, origin: str | None, *, is_own: bool) -> None:
    """Whether ``principal`` may be used by a page of ``origin``. Raises ``OriginNotAllowed``."""
    bound = principal.embed.origin if principal.embed else ""
    check_page(principal.origins, bound, origin, is_own=is_own)


def check_page(origins: Collection[str], bound: str, origin: str | None, *, is_own: bool) -> None:
    """Whether a page of ``origin`` may use what a tenant with these ``origins`` has.

    Our own pages may use every credential, others those of tenants that allow them. What is bound
    to an origin is good there and on our own pages, and nowhere else: not without an origin either.
    Other requests without one come from servers and apps. Raises ``OriginNotAllowed``.
    """
    if is_own:
        return
    if origin is None and not bound:
        return
    if origin not in origins or (bound and origin != bound):
        raise OriginNotAllowed
