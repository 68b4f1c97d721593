"""Settling what the outbox announces: sessions that ended, were suspended, or were delivered later.

Everything here may be killed at any moment, be called again, and run in several processes at once:
a session's messages are handled in the transaction that settles it, and by one process at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone
from psycopg.errors import LockNotAvailable

from billing.models import Settlement
from billing.services import announcements
from billing.services.charging import Announced, bring_up_to_date
from streaming.conf import conf
from streaming.metrics.plain import Spread
from streaming.models import OutboxMessage
from streaming.services.incidents import close_incident, open_incident
from streaming.services.sql import changed, rows

logger = logging.getLogger(__name__)

RUN_SECONDS = 1.0
"""The worker has other things to do; what is left the next run finds."""
A_FEW = 25
"""What a gateway settles at a time: its processor belongs to its streams."""
EVIDENCE_SECONDS = 2.0
"""Sockets tell what was taken of the last tokens up to 1.6 s after the end."""
MOST_SECONDS_TO_RETRY = 300
FAILED = "settlement_failed"

SETTLED_AFTER = Spread(
    "unbroken_settlement_seconds",
    "From a disconnect, an end, or later evidence of delivery to its settlement.",
    ["kind"],
    bounds=(0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0, 3600.0),
)

# What has failed waits for its next try, so that it stands in nobody's way. While the evidence of
# an end comes in, one settlement is waited for rather than several made; of a session that was
# abandoned nothing comes any more.
_DUE = """
WITH waiting AS (
    SELECT id, session_id, kind, created_at FROM streaming_outboxmessage
    WHERE handled_at IS NULL AND kind <> 'audit'
    AND coalesce((data ->> 'retry_at')::timestamptz <= %(now)s, true)
    ORDER BY id LIMIT %(window)s
)
SELECT w.session_id, array_agg(w.id) FROM waiting w
LEFT JOIN streaming_streamsession s ON s.id = w.session_id
LEFT JOIN session_fence f ON f.session_id = w.session_id
GROUP BY w.session_id, s.state, f.delivered_seq, f.durable_seq
HAVING NOT bool_or(w.kind = 'session_ended')
    OR coalesce(f.delivered_seq >= f.durable_seq - 1, true)
    OR s.state = 'abandoned'
    OR min(w.created_at) FILTER (WHERE w.kind = 'session_ended') <= %(evidence)s
ORDER BY min(w.id) LIMIT %(limit)s
"""

_POSTPONE = """
UPDATE streaming_outboxmessage SET data = data || jsonb_build_object('tries', tries,
    'retry_at', %s::timestamptz + make_interval(secs => least(2 ^ tries, %s)))
FROM (SELECT coalesce(max((data ->> 'tries')::int), 0) + 1 AS tries
    FROM streaming_outboxmessage WHERE id = ANY(%s)) t
WHERE id = ANY(%s) AND handled_at IS NULL
"""


class Waiting(NamedTuple):
    """What was announced of one session and not handled yet."""

    session_id: UUID
    messages: list[int]


def settle_due(limit: int = 200) -> dict[str, int]:
    """Settle up to ``limit`` sessions that wait for it, for about a second.

    In the answer: ``sessions`` and the ``settlements`` that they came to, those that ``failed``
    (an incident each; they are tried again), ``audited`` deeds, and ``more``: others wait.
    """
    began = time.monotonic()
    due = _due(limit)
    result = dict.fromkeys(("sessions", "settlements", "failed", "audited"), 0)
    more = len(due) >= limit
    for waiting in due:
        if time.monotonic() - began > RUN_SECONDS:
            more = True
            break
        try:
            settlements = _settle_waiting(waiting)
        except (OperationalError, InterfaceError):
            raise  # says something about the database, not about the session
        except Exception as exc:
            logger.exception("a session cannot be settled", extra={"session_id": str(waiting[0])})
            _postpone(waiting, exc)
            result["failed"] += 1
            continue
        if settlements is not None:
            result["sessions"] += 1
            result["settlements"] += len(settlements)
    result["audited"] = announcements.append_waiting(limit)
    result["more"] = int(more or result["audited"] >= limit)
    return result


def settle_overdue() -> int:
    """Settle in place of a worker that does not; how many sessions. For the thread of a gateway."""
    try:
        return settle_due(A_FEW)["sessions"]
    finally:
        connection.close()  # the thread may never come back


def settle_session(session_id: UUID) -> list[Settlement]:
    """Settle one session as it stands now, whatever was announced of it; the new settlements.

    Raises ``UnknownSession``.
    """
    with transaction.atomic():
        messages = list(_unhandled().select_for_update().filter(session_id=session_id))
        settlements = _settle(session_id, messages)
    _settled(messages)
    return settlements


def _due(limit: int) -> list[Waiting]:
    now = timezone.now()
    found = rows(
        _DUE,
        {
            "now": now,
            "evidence": now - timedelta(seconds=EVIDENCE_SECONDS),
            "window": 10 * limit,
            "limit": limit,
        },
    )
    return [Waiting(*row) for row in found]


def _settle_waiting(waiting: Waiting) -> list[Settlement] | None:
    """Settle a session for which messages wait; None: another process does, or has.

    All of its messages or none, and in one order: two processes with half of them each would both
    count the session.
    """
    unhandled = _unhandled().filter(pk__in=waiting.messages).order_by("pk")
    with transaction.atomic():
        try:
            messages = list(unhandled.select_for_update(nowait=True))
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable):
                raise
            transaction.set_rollback(True)
            return None
        if not messages:
            return None
        settlements = _settle(waiting.session_id, messages)
    _settled(messages)
    return settlements


def _unhandled() -> QuerySet[OutboxMessage]:
    return OutboxMessage.objects.filter(handled_at=None).exclude(kind=OutboxMessage.Kind.AUDIT)


def _settle(session_id: UUID, messages: Sequence[OutboxMessage]) -> list[Settlement]:
    announced = Announced(
        frozenset(message.kind for message in messages),
        max((message.created_at for message in messages), default=None),
    )
    # First, since the settlement ends with the lock that everybody waits for.
    OutboxMessage.objects.filter(pk__in=[message.pk for message in messages]).update(
        handled_at=timezone.now()
    )
    if any("tries" in message.data for message in messages):
        close_incident(FAILED, _subject(session_id))
    return bring_up_to_date(session_id, announced)


def _settled(messages: Sequence[OutboxMessage]) -> None:
    """Measure, once it is committed."""
    now = timezone.now()
    for message in messages:
        SETTLED_AFTER.note(
            (now - _since(message)).total_seconds(), message.kind.removeprefix("session_")
        )


def _since(message: OutboxMessage) -> datetime:
    """When what a message announces began: a suspension does with its reader's disconnect."""
    suspended = message.kind == OutboxMessage.Kind.SESSION_SUSPENDED
    grace = timedelta(seconds=conf().grace_seconds if suspended else 0.0)
    return message.created_at - grace


def _postpone(waiting: Waiting, exc: Exception) -> None:
    with transaction.atomic():
        ids = waiting.messages
        changed(_POSTPONE, timezone.now(), MOST_SECONDS_TO_RETRY, ids, ids)
        open_incident(
            FAILED,
            _subject(waiting.session_id),
            session_id=waiting.session_id,
            data={"error": f"{type(exc).__name__}: {exc}"[:500].replace("\x00", "\ufffd")},
        )


def _subject(session_id: UUID) -> str:
    return f"session {session_id}"
