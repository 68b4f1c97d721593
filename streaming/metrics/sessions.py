"""Tokens generated and delivered, told by how far each session's log and its readers have come.

Looked at once a second and at a session's end, so that tokens themselves cost nothing. Evidence of
delivery can come after the end of a session, and from readers of other processes: what is stored
in the session's fence decides what was counted already.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from uuid import UUID

from streaming.core.state import SessionState
from streaming.metrics import catalogue as c
from streaming.metrics.events import session_ended, session_left, settled_after_disconnect

LEFT_ALONE = frozenset({SessionState.SUSPENDED, SessionState.CANCELLED})
"""Where sessions go whose readers do not come back."""
INTERRUPTED = "interrupted"
"""What a suspension counts as that its reader was told an error of."""
LATE_SECONDS = 10.0
"""How long after a session's end evidence of its delivery may still come."""


@dataclass(slots=True)
class Record:
    """How far a session has been counted; ``left_at``: when its reader left (loop time)."""

    produced: int
    delivered: int
    left_at: float | None = None
    is_over: bool = False


class SessionCount:
    """What this process has counted of each session that it owns, or owned until just now."""

    def __init__(self) -> None:
        self._records: dict[UUID, Record] = {}
        self._closed: deque[tuple[float, UUID, Record]] = deque()

    def __repr__(self) -> str:
        return (
            f"<SessionCount of {len(self._records)} sessions, {len(self._closed)} of them closed>"
        )

    def opened(self, session_id: UUID, produced: int, delivered: int) -> None:
        """This process owns the session from here on; what it has so far was counted by others."""
        former = self._records.get(session_id)
        if former is not None:  # suspended here a moment ago
            delivered = max(delivered, former.delivered)
        self._records[session_id] = Record(produced, min(delivered, produced))

    def looked(self, session_id: UUID, produced: int, delivered: int) -> None:
        """Its log has ``produced`` tokens, of which ``delivered`` have reached a reader."""
        record = self._records.get(session_id)
        if record is None:
            return
        if produced > record.produced:
            c.GENERATED.add(produced - record.produced)
            record.produced = produced
        self._delivered(record, min(delivered, produced))

    def stored(self, session_id: UUID, former: int, seq: int) -> None:
        """The stored mark of delivery has moved from ``former`` to ``seq`` tokens."""
        record = self._records.get(session_id)
        if record is None:
            c.DELIVERED.add(max(0, seq - former))
        else:
            record.delivered = max(record.delivered, former)  # others have counted up to there
            self._delivered(record, seq)

    def left(self, session_id: UUID, since: float) -> None:
        """Its reader has been away since ``since`` (loop time), and its grace is over."""
        record = self._records.get(session_id)
        if record is not None and record.left_at is None:
            record.left_at = since
            session_left(record.delivered)

    def closed(
        self, session_id: UUID, state: SessionState, now: float, *, broke_off: bool = False
    ) -> None:
        """Its runner has ended, and left it in ``state``. ``broke_off``: an error has suspended it."""
        record = self._records.get(session_id)
        if record is None:
            return
        record.is_over = state.is_end
        if state.is_end or state is SessionState.SUSPENDED:
            session_ended(INTERRUPTED if broke_off else state.value)
            if record.left_at is not None and state in LEFT_ALONE:
                settled_after_disconnect(now - record.left_at)
        self._closed.append((now, session_id, record))

    def undelivered(self, now: float) -> dict[UUID, Record]:
        """Sessions that have been over for long enough, with tokens that we know of no reader of.

        A reader in another process may have them: the caller asks the stored mark, and then counts
        the rest by ``wasted_on``. Each is returned once.
        """
        found = {}
        while self._closed and now - self._closed[0][0] > LATE_SECONDS:
            _, session_id, record = self._closed.popleft()
            if self._records.get(session_id) is record:  # else it was taken up again
                del self._records[session_id]
                if record.is_over and record.delivered < record.produced:
                    found[session_id] = record
        return found

    def wasted_on(self, record: Record, stored: int) -> None:
        """A session is over, and ``stored`` is the last mark of its delivery."""
        c.WASTED.add(max(0, record.produced - max(record.delivered, stored)), "undelivered")

    def _delivered(self, record: Record, seq: int) -> None:
        if seq > record.delivered:
            c.DELIVERED.add(seq - record.delivered)
            record.delivered = seq
