"""Who is asking: from the ``Authorization`` header to a principal."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace

from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.embedding import PREFIX as EMBED
from streaming.core.levels import Level
from streaming.core.limits import Limit
from streaming.errors import AuthenticationFailed, InvalidRequest
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal
from streaming.services import embed_tokens
from streaming.services.demo_tokens import DEMO_TENANT, PREFIX, read_demo_token

_LOOKUP = """
SELECT k.id, k.tenant_id, t.name, k.is_test, k.on_disconnect, k.level, t.allowed_origins,
    k.requests_per_minute, k.tokens_per_minute, k.streams_at_once,
    t.requests_per_minute, t.tokens_per_minute, t.streams_at_once,
    t.user_requests_per_minute, t.user_tokens_per_minute, t.user_streams_at_once
FROM streaming_apikey k JOIN streaming_tenant t ON t.id = k.tenant_id
WHERE k.key_hash = %s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
"""
_CACHE_ENTRIES = 10_000
MAX_USER = 128


@dataclass(frozen=True, slots=True)
class _Cached:
    principal: Principal
    until: float


_cache: dict[str, _Cached] = {}


async def authenticate(
    gateway: Gateway, authorization: str | None, user: str | None = None
) -> Principal:
    """The principal behind an API key or embed token, trusted for ``auth_cache_seconds``.

    ``user``: the end user that the client's backend speaks for (``X-Unbroken-User``); a credential
    that is bound to an end user speaks for that one. Raises ``AuthenticationFailed``,
    ``TokenExpired``, and ``InvalidRequest`` for what is no name of a user.
    """
    return named(await _principal(gateway, authorization), user)


def named(principal: Principal, user: str | None) -> Principal:
    """``principal`` as the end user it speaks for. Raises ``InvalidRequest``."""
    if user is None or principal.end_user:
        return principal
    if len(user) > MAX_USER or "\x00" in user:
        raise InvalidRequest(f"The user must have at most {MAX_USER} characters.", param="user")
    return replace(principal, end_user=user)


async def _principal(gateway: Gateway, authorization: str | None) -> Principal:
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise AuthenticationFailed(
            "You didn't provide an API key: send it as 'Authorization: Bearer KEY'."
        )
    if secret.startswith(EMBED):
        return await embed_tokens.read(gateway.pool, secret)
    if conf().demo and secret.startswith(PREFIX):
        return await _demo_principal(gateway.pool, secret)
    return await _by_hash(gateway.pool, hashlib.sha256(secret.encode()).hexdigest())


async def _by_hash(pool: AsyncConnectionPool, digest: str) -> Principal:
    now = asyncio.get_running_loop().time()
    cached = _cache.get(digest)
    if cached is not None and cached.until > now:
        return cached.principal
    async with pool.connection() as connection:
        cursor = await connection.execute(_LOOKUP, (digest,))
        row = await cursor.fetchone()
    if row is None:
        _cache.pop(digest, None)
        raise AuthenticationFailed("Incorrect API key provided.")
    key_id, tenant_id, tenant, is_test, on_disconnect, level, origins, *limits = row
    principal = Principal(
        tenant_id,
        tenant,
        key_id,
        is_test=is_test,
        on_disconnect=on_disconnect,
        level=Level(level),
        origins=tuple(origins),
        limit=Limit(*limits[0:3]),
        tenant_limit=Limit(*limits[3:6]),
        user_limit=Limit(*limits[6:9]),
    )
    if len(_cache) >= _CACHE_ENTRIES:
        _cache.clear()
    _cache[digest] = _Cached(principal, now + conf().auth_cache_seconds)
    return principal


async def _demo_principal(pool: AsyncConnectionPool, token: str) -> Principal:
    """The page's visitor; a test key of the demo tenant in all but name."""
    end_user = read_demo_token(token)
    if end_user is None:
        raise AuthenticationFailed("This page is too old: reload it.")
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT id FROM streaming_tenant WHERE name = %s", (DEMO_TENANT,)
        )
        row = await cursor.fetchone()
    if row is None:
        raise AuthenticationFailed("The demo tenant does not exist.")
    return Principal(row[0], DEMO_TENANT, None, end_user=end_user, is_test=True)
