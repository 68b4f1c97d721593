"""What people at the support desk do to a session: stop it, or have it continued now.

Both are flags in its fence, which the owner and the gateways look at by themselves; whatever else is
known of a session may be old by the time that somebody has read it. Each action and its line in the
audit log are one transaction, in which the fence's row is held for a moment only: flushes wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from streaming.core.state import SessionState
from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.models import SessionFence, StreamSession
from streaming.services import audit
from streaming.services.orphans import end_suspended_session
from streaming.services.refused import Refused
from streaming.services.sql import changed, rows

REQUEST_STOP = """
UPDATE session_fence SET stop_requested = true WHERE session_id = %s AND NOT stop_requested
"""

# Who has taken it over meanwhile goes on with it anyway.
_REQUEST_CONTINUATION = """
UPDATE session_fence SET continue_requested = true
WHERE session_id = %s AND epoch = %s AND NOT stop_requested AND NOT continue_requested
"""

_STANDINGS = f"""
SELECT s.id, s.reference, s.tenant_id, s.state, s.ended_at IS NOT NULL, s.purged_at IS NOT NULL,
    coalesce(s.resume_until < now(), false), f.epoch, f.stop_requested, f.continue_requested,
    {OWNER_IS_DEAD}
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.id = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a session stands, as far as it matters for what can be done to it."""

    id: UUID
    reference: str
    tenant_id: int
    state: str
    ended: bool
    purged: bool
    window_is_over: bool
    epoch: int
    stop_requested: bool
    continue_requested: bool
    owner_is_dead: bool

    @property
    def suspended(self) -> bool:
        return self.state == SessionState.SUSPENDED.value

    @property
    def against_stopping(self) -> str:
        """Why it cannot be stopped; empty: it can."""
        if self.ended:
            return f"{self.reference} has ended: it is {self.state}."
        if self.stop_requested:
            return f"{self.reference} was told to stop already."
        return ""

    @property
    def against_continuing(self) -> str:
        """Why it cannot be continued now; empty: it can."""
        if self.purged:
            return f"The content of {self.reference} was purged: there is nothing to continue."
        if self.ended:
            return f"{self.reference} has ended: it is {self.state}."
        if self.stop_requested:
            return f"{self.reference} was told to stop."
        if self.suspended and self.window_is_over:
            return f"{self.reference} was suspended for too long: nobody may continue it any more."
        if not self.suspended and not self.owner_is_dead:
            return f"{self.reference} goes on as it is: it is {self.state}."
        if self.continue_requested:
            return f"{self.reference} is to be continued already."
        return ""


def standings(session_ids: Iterable[UUID]) -> dict[UUID, Standing]:
    """How sessions stand; of those that there are."""
    return {row[0]: Standing(*row) for row in rows(_STANDINGS, list(session_ids))}


def stop(session_id: UUID, *, by: str) -> None:
    """End a session for good, whether it is live, suspended, or its gateway has died.

    A live one ends within about a second, with the next flush or look of its gateway; a suspended one
    at once. Raises ``Refused`` for one that has ended, or was told to stop before.
    """
    standing = _standing(session_id)
    if standing.against_stopping:
        raise Refused(standing.against_stopping)
    with transaction.atomic():
        _announce("session.stop", standing, by)
        if not changed(REQUEST_STOP, session_id):
            raise Refused(f"{standing.reference} was told to stop already.")
        session = StreamSession.objects.only("state", "ended_at").get(pk=session_id)
        if session.ended_at is not None:
            raise Refused(f"{standing.reference} has ended: it is {session.state}.")
        if session.state == SessionState.SUSPENDED.value:
            # Nobody owns it, so nobody would look before its reader comes or its time is over.
            end_suspended_session(session_id, _epoch(session_id))


def continue_now(session_id: UUID, *, by: str) -> None:
    """Have the rest of an answer written although nobody reads it: its reader will find it whole.

    For a suspended session whose resume window is open, and for one whose gateway has died. A gateway
    takes it over within some seconds. Raises ``Refused`` for all others.
    """
    standing = _standing(session_id)
    if standing.against_continuing:
        raise Refused(standing.against_continuing)
    with transaction.atomic():
        _announce("session.continue", standing, by)
        if not changed(_REQUEST_CONTINUATION, session_id, standing.epoch):
            raise Refused(f"{standing.reference} has moved on meanwhile; look again.")


def _standing(session_id: UUID) -> Standing:
    found = standings([session_id])
    if session_id not in found:
        raise Refused("There is no such session.")
    return found[session_id]


def _epoch(session_id: UUID) -> int:
    return SessionFence.objects.values_list("epoch", flat=True).get(pk=session_id)


def _announce(action: str, standing: Standing, by: str) -> None:
    audit.announce(
        action,
        actor=by,
        subject=f"session:{standing.id}",
        tenant_id=standing.tenant_id,
        session_id=standing.id,
        reference=standing.reference,
        state=standing.state,
    )
