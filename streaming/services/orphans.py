"""Sessions whose gateway process has gone, and that no other gateway has taken over.

The gateways see to them within seconds (``runtime.adoption``). This is for when none of them lives:
what they left is stored as what it is, suspended, and waits for its reader as long as any other.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from streaming.conf import conf
from streaming.core.state import SessionState
from streaming.models import Attempt, OutboxMessage, SessionEvent, SessionFence, StreamSession
from streaming.runtime.instance import OWNER_IS_DEAD

CAUSE = "gateway_crash"

# Gateways come first: they can go on with a session, this can't.
_ORPHANS = f"""
SELECT s.id, f.epoch, s.owner_id, i.hostname, i.pid
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.ended_at IS NULL AND s.state <> 'suspended'
AND coalesce(i.heartbeat_at < now() - interval '15 seconds', true) AND {OWNER_IS_DEAD}
"""


def suspend_orphaned_sessions() -> int:
    """Suspend every open session whose owner has been dead for a while; how many.

    It may run twice at once, and beside an owner that turns out to live: the fence decides.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ORPHANS)  # a transaction of its own, so that no probed lock is kept
        orphans = cursor.fetchall()
    return sum(
        _suspend(session_id, epoch, {"gateway": owner, "hostname": hostname, "pid": pid})
        for session_id, epoch, owner, hostname, pid in orphans
    )


@transaction.atomic
def _suspend(session_id: Any, epoch: int, evidence: dict[str, Any]) -> bool:
    """Suspend one session; False when somebody else has taken it over or ended it meanwhile.

    The rows are locked in the order of the journal: the fence first.
    """
    taken = SessionFence.objects.filter(session=session_id, epoch=epoch)
    if not taken.update(epoch=F("epoch") + 1):
        return False
    seq = SessionFence.objects.values_list("durable_seq", flat=True).get(session=session_id)
    at = timezone.now()
    suspended = StreamSession.objects.filter(pk=session_id, ended_at__isnull=True).update(
        state=SessionState.SUSPENDED.value,
        cause=CAUSE,
        evidence=evidence,
        completion_tokens=seq,
        suspended_at=at,
        resume_until=at + timedelta(seconds=conf().resume_window),
    )
    if not suspended:  # its owner lived long enough to end it itself
        transaction.set_rollback(True)
        return False
    Attempt.objects.filter(session=session_id, ended_at__isnull=True).update(
        ended_at=at, end_reason=CAUSE, reclaim=Attempt.Reclaim.PENDING
    )
    SessionEvent.objects.create(
        session_id=session_id,
        at=at,
        kind=SessionState.SUSPENDED.value,
        seq=seq,
        data={"cause": CAUSE},
    )
    OutboxMessage.objects.create(session_id=session_id, kind="session_suspended", created_at=at)
    return True
