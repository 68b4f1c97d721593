"""The states of a session and the moves between them."""

from __future__ import annotations

import enum


class SessionState(enum.Enum):
    """Where a session is. The last five are ends: nothing follows them."""

    CREATED = "created"  # durable, no engine asked yet
    STREAMING = "streaming"
    RECOVERING = "recovering"  # an attempt failed, the next has not produced a token
    SUSPENDED = "suspended"  # no reader, or an error that is got over; engine released, log kept
    COMPLETED = "completed"
    STOPPED = "stopped"  # an authorised caller asked for it
    CANCELLED = "cancelled"  # its reader left and its policy is to end then
    FAILED = "failed"
    ABANDONED = "abandoned"  # suspended, and nobody came back in time

    @property
    def is_end(self) -> bool:
        return self not in _MOVES


_LIVE_ENDS = {
    SessionState.COMPLETED,
    SessionState.STOPPED,
    SessionState.CANCELLED,
    SessionState.FAILED,
}
_MOVES: dict[SessionState, set[SessionState]] = {
    SessionState.CREATED: {SessionState.STREAMING, SessionState.RECOVERING, SessionState.SUSPENDED}
    | _LIVE_ENDS,
    SessionState.STREAMING: {SessionState.RECOVERING, SessionState.SUSPENDED} | _LIVE_ENDS,
    SessionState.RECOVERING: {SessionState.STREAMING, SessionState.SUSPENDED} | _LIVE_ENDS,
    SessionState.SUSPENDED: {
        SessionState.STREAMING,
        SessionState.RECOVERING,
        SessionState.ABANDONED,
    }
    | _LIVE_ENDS,
}


class IllegalMove(RuntimeError):
    """A session was asked to go where its state does not lead."""


def check_move(current: SessionState, to: SessionState) -> None:
    """Raise ``IllegalMove`` unless a session may go from ``current`` to ``to``."""
    if to not in _MOVES.get(current, ()):
        raise IllegalMove(f"a session that is {current.value} cannot become {to.value}")
