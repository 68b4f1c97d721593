"""A reader of a session: how far it was served, and what proves that it got it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from streaming.conf import conf
from streaming.core.delivery import Marks

MARK_BYTES = 512
"""The finest that is told apart of what was written and not yet taken."""


class Socket(Protocol):
    """The side of a connection that tells what its peer has taken (``unbroken.socket``)."""

    @property
    def written(self) -> int: ...

    @property
    def ended_by(self) -> str: ...

    def taken(self) -> int | None: ...

    def tcp_info(self) -> Any: ...


@dataclass(slots=True, eq=False)
class Reader:
    """One connection that follows a session. Times are loop times, in seconds."""

    cursor: int
    now: float
    socket: Socket | None = None
    #: The last time it took something.
    progressed_at: float = 0.0
    marks: Marks = field(default_factory=Marks)
    stored: Marks = field(default_factory=Marks)
    """Those of its marks that this process has stored, where another one owns the session."""
    health: int | None = None
    """The lowest score of its connection so far (``core.connection_health``); None: not looked at."""
    since_epoch: int | None = None
    """The session's epoch that it has seen first; of one that it found suspended, the next."""
    returns: int = 0
    """How often readers of its session had come back lately, when it came."""
    _written: list[tuple[int, int, float]] = field(default_factory=list)
    """Two or three as a rule."""

    def __post_init__(self) -> None:
        self.progressed_at = self.now
        self.marks.sent = self.marks.cursor = self.cursor

    def __repr__(self) -> str:
        return f"<Reader at {self.cursor}: {self.marks}>"

    def sees(self, epoch: int) -> None:
        """It reads the session under this epoch."""
        if self.since_epoch is None:
            self.since_epoch = epoch

    def sent(self, seq: int, now: float) -> None:
        """Everything up to ``seq`` was written to the connection."""
        self.cursor = self.marks.sent = max(self.cursor, seq)
        self.progressed_at = now
        if self.socket is not None:
            mark, written = (self.socket.written, seq, now), self._written
            if len(written) >= 2 and written[-1][0] - written[-2][0] < MARK_BYTES:
                written[-1] = mark  # events are small, and a reader that is stuck keeps its marks
            else:
                written.append(mark)

    def acked(self, seq: int) -> None:
        """The client says that it has ``seq``; it cannot have more than was sent."""
        self.marks.acked = max(self.marks.acked, min(seq, self.cursor))

    def look(self) -> Marks:
        """Ask the socket what the peer has taken."""
        if self._written and self.socket is not None:
            taken = self.socket.taken()
            while taken is not None and self._written and self._written[0][0] <= taken:
                self.marks.taken = max(self.marks.taken, self._written.pop(0)[1])
        return self.marks

    def is_stuck(self, durable_seq: int, now: float, grace: float) -> bool:
        """Whether it is connected but takes nothing: such a reader counts as absent."""
        return durable_seq - self.cursor > conf().max_lead and now - self.progressed_at > grace

    def queue_age(self, now: float) -> float:
        """For how many seconds the oldest of what was sent has not been taken."""
        self.look()
        return now - self._written[0][2] if self._written else 0.0
