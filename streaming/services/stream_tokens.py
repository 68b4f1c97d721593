"""Stream tokens: what an ``EventSource`` puts into the URL, since it can't set headers.

Short-lived, bound to one session, and good for reading it only. What the session was begun with
stands behind it: a stream token opens nothing any more when that key or embed token is revoked, and
is good on no page on which that was not.
"""

from __future__ import annotations

from uuid import UUID

from django.core import signing
from psycopg_pool import AsyncConnectionPool

from streaming.errors import AuthenticationFailed, NotFound
from streaming.services.origins import check_page

_SALT = "unbroken.stream"
MAX_AGE = 3600

# Rows of embed tokens outlive the stream tokens of their sessions; who has none was removed.
_BEHIND = """
SELECT t.allowed_origins, coalesce(e.origin, ''),
    k.revoked_at IS NOT NULL OR e.revoked_at IS NOT NULL
    OR (s.embed_token_id IS NOT NULL AND e.id IS NULL)
FROM streaming_streamsession s
JOIN streaming_tenant t ON t.id = s.tenant_id
LEFT JOIN streaming_apikey k ON k.id = s.api_key_id
LEFT JOIN streaming_embedtoken e ON e.id = s.embed_token_id
WHERE s.id = %s
"""


def mint_stream_token(session_id: UUID) -> str:
    """A token that opens the events of ``session_id`` for ``MAX_AGE`` seconds."""
    return signing.dumps(session_id.hex, salt=_SALT)


def opens(token: str, session_id: UUID) -> bool:
    """Whether ``token`` is of this session, and not too old."""
    try:
        return signing.loads(token, salt=_SALT, max_age=MAX_AGE) == session_id.hex
    except signing.BadSignature:
        return False


async def check_stream_token(
    pool: AsyncConnectionPool, token: str, session_id: UUID, origin: str | None, *, is_own: bool
) -> None:
    """Whether a page of ``origin`` may read ``session_id`` with ``token``.

    Raises ``AuthenticationFailed``, ``NotFound``, ``OriginNotAllowed``.
    """
    if not opens(token, session_id):
        raise AuthenticationFailed("The stream token is invalid or has expired.")
    async with pool.connection() as connection:
        cursor = await connection.execute(_BEHIND, (session_id,))
        row = await cursor.fetchone()
    if row is None:
        raise NotFound("There is no such session.")
    origins, bound, is_revoked = row
    if is_revoked:
        raise AuthenticationFailed("What this session was begun with has been revoked.")
    check_page(origins, bound, origin, is_own=is_own)
