"""Forgetting what was asked and answered, once it has been kept for as long as was agreed.

What remains of a session is what its bill rests on: who, when, how many tokens, which attempt
produced which of them, how it ended, and the digests over its log, against which a copy of the answer
could still be proven. Of its content nothing remains: not the request, not the prompt's ids, not a
token, nor words of engines that may quote either. Its readers get 410.

A tenant's days count as they are now, from the day on which a session began. What leaves on the day
that was foreseen then goes with its partition; all else leaves row by row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from streaming.conf import conf
from streaming.models import StreamSession
from streaming.runtime.incidents import IncidentKind
from streaming.services import audit, partitions
from streaming.services.incidents import close_incident, open_incident
from streaming.services.refused import Refused
from streaming.services.sql import changed, rows

logger = logging.getLogger(__name__)

BATCH = 500
RUN_SECONDS = 1.0
"""The worker has other sweeps to do."""

# Two runs at once take different sessions. A reader that was there at the end has an hour for it.
_DUE = """
SELECT due.id FROM streaming_tenant t CROSS JOIN LATERAL (
    SELECT s.id FROM streaming_streamsession s
    WHERE s.tenant_id = t.id AND s.purged_at IS NULL
    AND s.created_at < (%(today)s::date - coalesce(t.content_days, %(days)s))::timestamp AT TIME ZONE 'UTC'
    AND s.ended_at < now() - interval '1 hour'
    ORDER BY s.created_at LIMIT %(batch)s FOR UPDATE OF s SKIP LOCKED
) due
WHERE coalesce(t.content_days, %(days)s) BETWEEN 1 AND 100000 LIMIT %(batch)s
"""

_DAYS = """
SELECT DISTINCT expires_on FROM streaming_streamsession WHERE id = ANY(%s)
"""

# A day and more after it should have gone.
_OVERDUE = """
SELECT count(*) FROM streaming_tenant t CROSS JOIN LATERAL (
    SELECT FROM streaming_streamsession s
    WHERE s.tenant_id = t.id AND s.purged_at IS NULL
    AND s.created_at < (%(today)s::date - coalesce(t.content_days, %(days)s) - 1)::timestamp
        AT TIME ZONE 'UTC'
    AND s.ended_at < now() - interval '1 day' LIMIT %(most)s
) due
WHERE coalesce(t.content_days, %(days)s) BETWEEN 1 AND 100000
"""
OVERDUE_COUNTED = 10_000
"""At most, of each tenant."""

# Before the rows go, what they alone say: which attempt produced which tokens. Of one whose process
# died nobody else has written it down.
_NOTE_RANGES = """
UPDATE streaming_attempt a SET log_digest = r.digest,
    first_seq = coalesce(a.first_seq, r.first_seq), last_seq = coalesce(a.last_seq, r.last_seq)
FROM (
    SELECT session_id, attempt, min(first_seq) AS first_seq,
        max(last_seq - (terminal IS NOT NULL)::int) AS last_seq,
        (array_agg(digest ORDER BY first_seq DESC))[1] AS digest
    FROM streaming_tokencheckpoint
    WHERE session_id = ANY(%(ids)s) AND expires_on = ANY(%(days)s)
    AND last_seq - (terminal IS NOT NULL)::int >= first_seq
    GROUP BY session_id, attempt
) r
WHERE a.session_id = r.session_id AND a.number = r.attempt
"""

# One odd row must not keep the content of all others from being forgotten.
_WITHOUT_WORDS = """
CASE jsonb_typeof(evidence) WHEN 'object' THEN evidence - 'said' ELSE '{}' END
"""

_FORGET_SESSIONS = f"""
UPDATE streaming_streamsession s SET request = '', prompt_token_ids = NULL, purged_at = now(),
    evidence = {_WITHOUT_WORDS}, log_digest = (
        SELECT c.digest FROM streaming_tokencheckpoint c
        WHERE c.session_id = s.id AND c.expires_on = s.expires_on AND c.expires_on = ANY(%(days)s)
        ORDER BY c.first_seq DESC LIMIT 1
    )
WHERE s.id = ANY(%(ids)s)
"""
_FORGET_TOKENS = """
DELETE FROM streaming_tokencheckpoint WHERE session_id = ANY(%s) AND expires_on = ANY(%s)
"""
_FORGET_WORDS = f"""
UPDATE streaming_attempt SET end_detail = '', evidence = {_WITHOUT_WORDS}
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


def watch_overdue() -> int:
    """Open an incident while content is there a day longer than was agreed, or close it.

    How many sessions that concerns; partitions that cannot be dropped count too.
    """
    sessions = int(rows(_OVERDUE, {**_as_of_now(), "most": OVERDUE_COUNTED})[0][0])
    held = [partition.table for partition in partitions.held()]
    if sessions or held:
        open_incident(
            IncidentKind.CONTENT_OVERDUE, "content", data={"sessions": sessions, "partitions": held}
        )
    else:
        close_incident(IncidentKind.CONTENT_OVERDUE, "content")
    return sessions + len(held)


@transaction.atomic
def purge_session(session_id: UUID, *, by: str) -> None:
    """Purge one session now. Raises ``Refused`` while it lives, and when it was purged before."""
    found = StreamSession.objects.select_for_update().only(
        "ended_at", "purged_at", "tenant_id", "reference"
    )
    session = found.filter(pk=session_id).first()
    if session is None:
        raise Refused("There is no such session.")
    if session.ended_at is None:
        raise Refused(f"{session.reference} has not ended: stop it first.")
    if session.purged_at is not None:
        raise Refused(f"The content of {session.reference} was purged before.")
    forget([session_id])
    audit.announce(
        "session.purge",
        actor=by,
        subject=f"session:{session_id}",
        tenant_id=session.tenant_id,
        session_id=session_id,
        reference=session.reference,
    )


def forget(ids: Sequence[UUID], *, with_partition: bool = False) -> None:
    """Forget the content of sessions that have ended, whose rows the caller has locked.

    ``with_partition``: rows whose partition is due are left for it to take along.
    """
    named = {"ids": list(ids), "days": [day for (day,) in rows(_DAYS, list(ids))]}
    changed(_NOTE_RANGES, named)
    changed(_FORGET_SESSIONS, named)
    changed(_FORGET_WORDS, named["ids"])
    due = {partition.day for partition in partitions.due()} if with_partition else set()
    if at_once := [day for day in named["days"] if day not in due]:
        changed(_FORGET_TOKENS, named["ids"], at_once)


@transaction.atomic
def _purge_batch() -> int:
    expired = rows(_DUE, {**_as_of_now(), "batch": BATCH})

    ids = [row[0] for row in expired]
    if ids:
        forget(ids, with_partition=True)
    return len(ids)


def _as_of_now() -> dict[str, Any]:
    return {"today": partitions.today(), "days": conf().content_days}
