"""A reader of a session: how far it was served, and what proves that it got it.

Delivered is the greatest seq for which there is evidence: acknowledged by the client, shown by a
later cursor, or written and taken by the peer's kernel as far as the socket tells. Never more than
was sent.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from streaming.conf import conf

MARK_BYTES = 512
"""The finest that is told apart of what was written and not yet taken."""
WEAK_RTT_US = 300_000
WEAK_RETRANSMITS = 3


class Evidence(enum.IntEnum):
    """The kinds of evidence, weakest first."""

    NONE = 0
    SOCKET = 1
    CURSOR = 2
    ACK = 3


class Socket(Protocol):
    """The side of a connection that tells what its peer has taken (``unbroken.socket``)."""

    @property
    def written(self) -> int: ...

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
    delivered_seq: int = 0
    evidence: Evidence = Evidence.NONE
    _marks: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.progressed_at = self.now
        if self.cursor:
            self._prove(self.cursor, Evidence.CURSOR)

    def __repr__(self) -> str:
        return f"<Reader at {self.cursor}, delivered {self.delivered_seq} ({self.evidence.name})>"

    def sent(self, seq: int, now: float) -> None:
        """Everything up to ``seq`` was written to the connection."""
        self.cursor = max(self.cursor, seq)
        self.progressed_at = now
        if self.socket is not None:
            mark, marks = (self.socket.written, seq), self._marks
            if len(marks) >= 2 and marks[-1][0] - marks[-2][0] < MARK_BYTES:
                marks[-1] = mark  # events are small, and a reader that is stuck keeps its marks
            else:
                marks.append(mark)

    def acked(self, seq: int) -> None:
        """The client says that it has ``seq``; it cannot have more than was sent."""
        self._prove(min(seq, self.cursor), Evidence.ACK)

    def look(self) -> int:
        """Ask the socket what the peer has taken; the delivered seq."""
        if self._marks and self.socket is not None:
            taken = self.socket.taken()
            while taken is not None and self._marks and self._marks[0][0] <= taken:
                self._prove(self._marks.popleft()[1], Evidence.SOCKET)
        return self.delivered_seq

    def is_stuck(self, durable_seq: int, now: float, grace: float) -> bool:
        """Whether it is connected but takes nothing: such a reader counts as absent."""
        return durable_seq - self.cursor > conf().max_lead and now - self.progressed_at > grace

    @property
    def is_weak(self) -> bool:
        """Whether the network between us is slow or loses packets."""
        info = None if self.socket is None else self.socket.tcp_info()
        return info is not None and (
            info.rtt_us > WEAK_RTT_US or info.retransmitted_segments > WEAK_RETRANSMITS
        )

    def _prove(self, seq: int, evidence: Evidence) -> None:
        if seq > self.delivered_seq or (seq == self.delivered_seq and evidence > self.evidence):
            self.delivered_seq = seq
            self.evidence = evidence
