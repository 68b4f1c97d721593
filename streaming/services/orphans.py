"""Sessions whose gateway process has gone: nobody else would ever store how they ended."""

from __future__ import annotations

from typing import Any

import orjson
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from streaming.core.digest import RunningDigest
from streaming.core.state import SessionState
from streaming.errors import GatewayError
from streaming.models import (
    Attempt,
    GatewayInstance,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    TokenCheckpoint,
)
from streaming.runtime.instance import DEAD_OWNERS


class GatewayCrashed(GatewayError):
    """The gateway process that produced this answer has ended; the answer ends here."""

    code = "gateway_crash"
    http_status = 502


def finish_orphaned_sessions() -> int:
    """End every open session whose owner is dead or stopped, as ``gateway_crash``; how many.

    A suspended session needs no process: it waits for its reader, whoever suspended it.
    It may run twice at once, and beside an owner that turns out to live: the fence decides.
    """
    owned = _open_sessions().filter(owner__isnull=False)
    gone = _gone_owners(list(owned.values_list("owner_id", flat=True).distinct()))
    # Tuples, not objects: a session's row holds its whole request.
    orphans = owned.filter(owner__in=gone, fence__isnull=False).values_list(
        "id", "owner_id", "fence__epoch"
    )
    return sum(_finish(session_id, epoch, gone[owner]) for session_id, owner, epoch in orphans)


def _open_sessions() -> QuerySet[StreamSession]:
    """Those that somebody has to bring to an end."""
    return StreamSession.objects.filter(ended_at__isnull=True).exclude(
        state=SessionState.SUSPENDED.value
    )


def _gone_owners(owners: list[int]) -> dict[int, dict[str, Any]]:
    """Those of the processes that have ended, and by what we know it."""
    with connection.cursor() as cursor:
        cursor.execute(DEAD_OWNERS, [owners])  # a transaction of its own, so no lock is kept
        dead = {row[0] for row in cursor.fetchall()}
    return {
        owner.pk: {
            "gateway": owner.pk,
            "hostname": owner.hostname,
            "pid": owner.pid,
            "heartbeat_at": owner.heartbeat_at.isoformat(),
            "stopped_at": owner.stopped_at.isoformat() if owner.stopped_at else None,
        }
        for owner in GatewayInstance.objects.filter(pk__in=owners)
        if owner.pk in dead or owner.stopped_at is not None
    }


@transaction.atomic
def _finish(session_id: Any, epoch: int, evidence: dict[str, Any]) -> bool:
    """End one session; False when somebody else has taken it over or ended it meanwhile.

    The rows are locked in the order of the journal: the fence first.
    """
    taken = SessionFence.objects.filter(session=session_id, epoch=epoch)
    if not taken.update(epoch=F("epoch") + 1, durable_seq=F("durable_seq") + 1):
        return False
    end_seq = SessionFence.objects.values_list("durable_seq", flat=True).get(session=session_id)
    at = timezone.now()
    ended = (
        _open_sessions()
        .filter(pk=session_id)
        .update(
            state=SessionState.FAILED.value,
            error_code=GatewayCrashed.code,
            cause=GatewayCrashed.code,
            evidence=evidence,
            completion_tokens=end_seq - 1,
            ended_at=at,
        )
    )
    if not ended:  # its owner lived long enough to end or suspend it itself
        transaction.set_rollback(True)
        return False
    _close_log(session_id, epoch + 1, end_seq)
    Attempt.objects.filter(session=session_id, ended_at__isnull=True).update(
        ended_at=at, end_reason=GatewayCrashed.code
    )
    SessionEvent.objects.create(
        session_id=session_id,
        at=at,
        kind=SessionState.FAILED.value,
        seq=end_seq,
        data={"cause": GatewayCrashed.code},
    )
    OutboxMessage.objects.create(session_id=session_id, kind="session_ended", created_at=at)
    return True


def _close_log(session_id: Any, epoch: int, seq: int) -> None:
    """Write the terminal record. It holds no token, so the digest stays what it was."""
    last = (
        TokenCheckpoint.objects.filter(session=session_id, last_seq=seq - 1)
        .values("attempt", "digest")
        .first()
    ) or {"attempt": 1, "digest": RunningDigest().digest()}
    terminal = {
        "state": SessionState.FAILED.value,
        "finish_reason": "",
        "error": GatewayCrashed().as_openai()["error"],
    }
    TokenCheckpoint.objects.create(
        session_id=session_id,
        epoch=epoch,
        attempt=last["attempt"],
        first_seq=seq,
        last_seq=seq,
        token_ids=b"",
        text=b"",
        text_ends=b"",
        digest=last["digest"],
        terminal=orjson.dumps(terminal),
        created_at=timezone.now(),
    )
