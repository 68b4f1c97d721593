"""``Idempotency-Key``: the same key, principal and body is the same session, billed once."""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID

from streaming.core.ids import uuid7
from streaming.errors import IdempotencyMismatch, InvalidRequest, JournalUnavailable
from streaming.runtime.adoption import stored_session
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal

CREATION_SECONDS = 10.0
POLL_SECONDS = 0.02

_CLAIM = """
INSERT INTO streaming_idempotencykey (tenant_id, end_user, key, body_digest, session_id, created_at)
VALUES (%s, %s, %s, %s, %s, now())
ON CONFLICT (tenant_id, end_user, key) DO NOTHING
RETURNING session_id
"""
# A claim whose process died before the session was durable is free again.
_RECLAIM = """
UPDATE streaming_idempotencykey k SET session_id = %s, created_at = now()
WHERE tenant_id = %s AND end_user = %s AND key = %s AND session_id = %s
AND NOT EXISTS (SELECT 1 FROM session_fence f WHERE f.session_id = k.session_id)
AND created_at < now() - make_interval(secs => %s)
RETURNING session_id
"""


async def claim(
    gateway: Gateway, principal: Principal, end_user: str, key: str, body: bytes
) -> tuple[UUID, bool]:
    """The session of this key, and whether the caller is the one to create it.

    Returns for an existing session once it is durable. Raises ``InvalidRequest``,
    ``IdempotencyMismatch`` (another body), ``JournalUnavailable``.
    """
    if not key or len(key) > 255 or not key.isprintable():
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable characters.")
    digest = hashlib.sha256(body).digest()
    fresh = uuid7()
    async with gateway.pool.connection() as connection:
        cursor = await connection.execute(
            _CLAIM, (principal.tenant_id, end_user, key, digest, fresh)
        )
        if await cursor.fetchone() is not None:
            return fresh, True
        cursor = await connection.execute(
            "SELECT session_id, body_digest FROM streaming_idempotencykey"
            " WHERE tenant_id = %s AND end_user = %s AND key = %s",
            (principal.tenant_id, end_user, key),
        )
        row = await cursor.fetchone()
    if row is None:  # released between the two statements
        raise JournalUnavailable(retry_after=1)
    session_id, claimed_digest = row
    if bytes(claimed_digest) != digest:
        raise IdempotencyMismatch
    return await _wait_for(gateway, principal, end_user, key, session_id)


async def release(gateway: Gateway, session_id: UUID) -> None:
    """The session was refused before it began: the key is free for another try."""
    async with gateway.pool.connection() as connection:
        await connection.execute(
            "DELETE FROM streaming_idempotencykey WHERE session_id = %s", (session_id,)
        )


async def _wait_for(
    gateway: Gateway, principal: Principal, end_user: str, key: str, session_id: UUID
) -> tuple[UUID, bool]:
    """The other request has claimed the key and is creating the session."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 2 * CREATION_SECONDS
    while loop.time() < deadline:
        if await stored_session(gateway.pool, session_id) is not None:
            return session_id, False
        fresh = uuid7()
        async with gateway.pool.connection() as connection:
            cursor = await connection.execute(
                _RECLAIM,
                (fresh, principal.tenant_id, end_user, key, session_id, CREATION_SECONDS),
            )
            if await cursor.fetchone() is not None:
                return fresh, True
        await asyncio.sleep(POLL_SECONDS)
    raise JournalUnavailable(retry_after=1)
