"""Sessions that no gateway process looks after any more.

The gateways see to them within seconds (``runtime.adoption``). This is for when none of them lives:
what they left is stored as what it is, suspended, and waits for its reader as long as any other;
and what nobody has come back for in time is ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from streaming.conf import conf
from streaming.core.digest import RunningDigest
from streaming.core.state import SessionState
from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.metrics import session_ended
from streaming.models import (
    Attempt,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    TokenCheckpoint,
)
from streaming.runtime.token_log import terminal_bytes
from streaming.services.sql import rows

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


_UNRETURNED = """
SELECT s.id, f.epoch FROM streaming_streamsession s JOIN session_fence f ON f.session_id = s.id
WHERE s.state = 'suspended' AND s.ended_at IS NULL
AND s.resume_until < now() - interval '15 seconds'
ORDER BY s.resume_until LIMIT 1000
"""


def settle_abandoned_sessions() -> dict[str, Any]:
    """Suspend what the gateways have left, and end what nobody came back for; how many of each."""
    return {"suspended": suspend_orphaned_sessions(), "abandoned": end_unreturned_sessions()}


def suspend_orphaned_sessions() -> int:
    """Suspend every open session whose owner has been dead for a while; how many.

    It may run twice at once, and beside an owner that turns out to live: the fence decides.
    """
    orphans = rows(_ORPHANS)  # a transaction of its own, so that no probed lock is kept
    return sum(
        _suspend(session_id, epoch, {"gateway": owner, "hostname": hostname, "pid": pid})
        for session_id, epoch, owner, hostname, pid in orphans
    )


def end_unreturned_sessions() -> int:
    """End every suspended session whose resume window has been over for a while; how many.

    It may run twice at once, and beside a gateway that does the same: the fence decides.
    """
    return sum(end_suspended_session(session_id, epoch) for session_id, epoch in rows(_UNRETURNED))


@transaction.atomic
def end_suspended_session(session_id: Any, epoch: int) -> bool:
    """End a suspended session; False when somebody has come back, or ended it, meanwhile.

    As a gateway would: an answer that was whole is completed, one that was to be stopped stopped.
    """
    taken = SessionFence.objects.filter(session=session_id, epoch=epoch)
    if not taken.update(epoch=F("epoch") + 1, durable_seq=F("durable_seq") + 1):
        return False
    fence = SessionFence.objects.get(session=session_id)
    session = StreamSession.objects.get(pk=session_id)
    if session.ended_at is not None or session.state != SessionState.SUSPENDED.value:
        transaction.set_rollback(True)
        return False
    error = None
    if session.finish_reason:
        state, cause = SessionState.COMPLETED, ""
    elif fence.stop_requested:
        state, cause = SessionState.STOPPED, "client_stop"
    else:
        state, cause = SessionState.ABANDONED, "abandoned"
        if session.error_code:  # it was an error that had suspended it
            cause, error = session.cause, _error_of(session_id)
    at = timezone.now()
    StreamSession.objects.filter(pk=session_id).update(
        state=state.value,
        cause=cause,
        error_code="" if error is None else session.error_code,
        ended_at=at,
        completion_tokens=fence.durable_seq - 1,
    )
    last = TokenCheckpoint.objects.of(session).order_by("-first_seq").first()
    terminal: dict[str, Any] = {
        "state": state.value,
        "finish_reason": session.finish_reason,
        "prompt_tokens": session.prompt_tokens,
        "cached_prompt_tokens": None,
    }
    if error is not None:
        terminal["error"] = {**error, "resumable": False}
    TokenCheckpoint.objects.create(
        session_id=session_id,
        epoch=fence.epoch,
        attempt=last.attempt if last else 1,
        first_seq=fence.durable_seq,
        last_seq=fence.durable_seq,
        token_ids=b"",
        text=b"",
        text_ends=b"",
        digest=last.digest if last else RunningDigest().digest(),
        terminal=terminal_bytes(terminal),
        created_at=at,
        expires_on=fence.expires_on,
    )
    SessionEvent.objects.create(
        session_id=session_id, at=at, kind=state.value, seq=fence.durable_seq, data={"cause": cause}
    )
    OutboxMessage.objects.create(session_id=session_id, kind="session_ended", created_at=at)
    session_ended(state.value)
    return True


def _error_of(session_id: Any) -> dict[str, Any]:
    """The error object that has suspended a session."""
    suspensions = SessionEvent.objects.filter(session=session_id, kind=SessionState.SUSPENDED.value)
    error: dict[str, Any] = suspensions.latest("pk").data["error"]
    return error


@transaction.atomic
def _suspend(session_id: Any, epoch: int, evidence: dict[str, Any]) -> bool:
    """Suspend one session; False when somebody else has taken it over or ended it meanwhile.

    One that was told to stop has its end with that: nobody is to come back to it.

    The rows are locked in the order of the journal: the fence first.
    """
    taken = SessionFence.objects.filter(session=session_id, epoch=epoch)
    if not taken.update(epoch=F("epoch") + 1):
        return False
    fence = SessionFence.objects.get(session=session_id)
    seq = fence.durable_seq
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
        ended_at=at,
        end_reason=CAUSE,
        reclaim=Attempt.Reclaim.PENDING,
        cause=CAUSE,
        evidence=evidence,
    )
    SessionEvent.objects.create(
        session_id=session_id,
        at=at,
        kind=SessionState.SUSPENDED.value,
        seq=seq,
        data={"cause": CAUSE},
    )
    OutboxMessage.objects.create(session_id=session_id, kind="session_suspended", created_at=at)
    session_ended(SessionState.SUSPENDED.value)
    if fence.stop_requested:
        end_suspended_session(session_id, fence.epoch)
    return True
