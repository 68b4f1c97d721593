"""Stream tokens: what an ``EventSource`` puts into the URL, since it can't set headers.

Short-lived, bound to one session, and good for reading it only.
"""

from __future__ import annotations

from uuid import UUID

from django.core import signing

_SALT = "unbroken.stream"
MAX_AGE = 3600


def mint_stream_token(session_id: UUID) -> str:
    """A token that opens the events of ``session_id`` for ``MAX_AGE`` seconds."""
    return signing.dumps(session_id.hex, salt=_SALT)


def opens(token: str, session_id: UUID) -> bool:
    """Whether ``token`` opens this session, and still does."""
    try:
        return signing.loads(token, salt=_SALT, max_age=MAX_AGE) == session_id.hex
    except signing.BadSignature:
        return False
