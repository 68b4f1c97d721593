"""``Idempotency-Key``: the same key, principal and body is the same session, billed once."""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID

from streaming.conf import conf
from streaming.core.ids import uuid7
from streaming.errors import IdempotencyMismatch, InvalidRequest, JournalUnavailable
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal

CREATION_SECONDS = 10.0
"""How long a session may take to be durable, once it has its turn."""
POLL_SECONDS = 0.02

_CLAIM = """
INSERT INTO streaming_idempotencykey (tenant_id, end_user, key, body_digest, session_id, created_at)
VALUES (%s, %s, %s, %s, %s, now())
ON CONFLICT (tenant_id, end_user, key) DO NOTHING
RETURNING session_id
"""
_CLAIMED = """
SELECT k.session_id, k.body_digest, f.session_id IS NOT NULL
FROM streaming_idempotencykey k LEFT JOIN session_fence f ON f.session_id = k.session_id
WHERE k.tenant_id = %s AND k.end_user = %s AND k.key = %s
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
    owner = (principal.tenant_id, end_user, key)
    digest = hashlib.sha256(body).digest()
    fresh = uuid7()
    loop = asyncio.get_running_loop()
    creation = CREATION_SECONDS + conf().queue_seconds
    deadline = loop.time() + 2 * creation
    while loop.time() < deadline:
        # The row is read again each time: it may be released, or claimed anew by somebody else.
        async with gateway.pool.connection() as connection:
            cursor = await connection.execute(_CLAIM, (*owner, digest, fresh))
            if await cursor.fetchone() is not None:
                return fresh, True
            cursor = await connection.execute(_CLAIMED, owner)
            row = await cursor.fetchone()
            if row is None:
                continue
            session_id, claimed_digest, is_durable = row
            if bytes(claimed_digest) != digest:
                raise IdempotencyMismatch
            if is_durable:
                return session_id, False
            cursor = await connection.execute(_RECLAIM, (fresh, *owner, session_id, creation))
            if await cursor.fetchone() is not None:
                return fresh, True
        await asyncio.sleep(POLL_SECONDS)
    raise JournalUnavailable(retry_after=1)


async def release(gateway: Gateway, session_id: UUID) -> None:
    """The session was refused before it began: the key is free for another try."""
    async with gateway.pool.connection() as connection:
        await connection.execute(
            "DELETE FROM streaming_idempotencykey WHERE session_id = %s", (session_id,)
        )
