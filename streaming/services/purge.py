"""Forgetting what was asked and answered, once it has been kept for as long as was agreed.

What remains of a session is what its bill rests on: who, when, how many tokens, how it ended, and
the digest over its whole log, against which a copy of the answer could still be proven. Of its
content nothing remains: not the request, not the prompt's ids, not a token, nor words of engines
that may quote either. Its readers get 410.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from django.db import transaction
from django.db.models import Min

from streaming.conf import conf
from streaming.models import Tenant
from streaming.services.sql import changed, rows

logger = logging.getLogger(__name__)

BATCH = 500
RUN_SECONDS = 1.0
"""The worker has other sweeps to do."""

# Two runs at once take different sessions.
_EXPIRED = """
SELECT s.id FROM streaming_streamsession s JOIN streaming_tenant t ON t.id = s.tenant_id
WHERE s.purged_at IS NULL AND s.ended_at IS NOT NULL
AND s.ended_at < now() - make_interval(days => %(shortest)s)  -- what the index is good for
AND CASE coalesce(t.content_days, %(days)s) WHEN 0 THEN false
    ELSE s.ended_at < now() - make_interval(days => coalesce(t.content_days, %(days)s)) END
ORDER BY s.ended_at LIMIT %(batch)s FOR UPDATE OF s SKIP LOCKED
"""

_FORGET_SESSIONS = """
UPDATE streaming_streamsession s SET request = '', prompt_token_ids = NULL, purged_at = now(),
    evidence = s.evidence - 'said', log_digest = (
        SELECT c.digest FROM streaming_tokencheckpoint c
        WHERE c.session_id = s.id ORDER BY c.first_seq DESC LIMIT 1
    )
WHERE s.id = ANY(%s)
"""
_FORGET_TOKENS = "DELETE FROM streaming_tokencheckpoint WHERE session_id = ANY(%s)"
_FORGET_WORDS = """
UPDATE streaming_attempt SET end_detail = '', evidence = evidence - 'said'
WHERE session_id = ANY(%s)
"""


def purge_expired_content() -> dict[str, Any]:
    """Purge sessions for about a second; ``more`` in the answer: there are others."""
    began = time.monotonic()
    purged = 0
    while time.monotonic() - began < RUN_SECONDS:
        count = _purge_batch()
        purged += count
        if count < BATCH:
            return {"purged": purged, "more": False}
    return {"purged": purged, "more": True}


@transaction.atomic
def _purge_batch() -> int:
    days = conf().content_days
    told = Tenant.objects.filter(content_days__gt=0).aggregate(least=Min("content_days"))["least"]
    shortest = min((n for n in (days, told) if n), default=None)
    if shortest is None:  # everything is kept for ever
        return 0
    expired = rows(_EXPIRED, {"days": days, "shortest": shortest, "batch": BATCH})
    ids = [row[0] for row in expired]
    if ids:
        changed(_FORGET_SESSIONS, ids)
        changed(_FORGET_TOKENS, ids)
        changed(_FORGET_WORDS, ids)
    return len(ids)
