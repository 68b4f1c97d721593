"""What proves that tokens have reached a reader, and how far each kind of proof goes.

Delivered is the greatest seq for which there is evidence: acknowledged by the client, shown by a
later cursor, or taken by the peer's system as far as its socket told. Never more than was sent.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Evidence(enum.IntEnum):
    """The kinds of evidence, weakest first."""

    NONE = 0
    SOCKET = 1
    CURSOR = 2
    ACK = 3


@dataclass(slots=True)
class Marks:
    """The greatest seq of each kind; the terminal record's seq counts like a token's.

    ``sent``: in an event that was written whole. ``taken``: by the peer's system. ``cursor``: with
    which a reader has come back. ``acked``: what a reader has said that it has.
    """

    sent: int = 0
    taken: int = 0
    cursor: int = 0
    acked: int = 0

    @property
    def delivered(self) -> int:
        """The greatest seq that there is evidence for."""
        return min(self.sent, max(self.taken, self.cursor, self.acked))

    @property
    def evidence(self) -> Evidence:
        """The strongest kind that proves all of ``delivered``."""
        delivered = self.delivered
        if not delivered:
            return Evidence.NONE
        if self.acked >= delivered:
            return Evidence.ACK
        return Evidence.CURSOR if self.cursor >= delivered else Evidence.SOCKET

    def learn(self, other: Marks) -> None:
        """Take in what others have seen; no mark goes back."""
        self.sent = max(self.sent, other.sent)
        self.taken = max(self.taken, other.taken)
        self.cursor = max(self.cursor, other.cursor)
        self.acked = max(self.acked, other.acked)

    def deny(self, cursor: int) -> None:
        """A reader says that it has no more than ``cursor``.

        That outweighs what a socket took, which may have been lost on the way from there; it does
        not outweigh what was acknowledged or shown by a cursor before.
        """
        self.taken = min(self.taken, cursor)

    def since(self, former: Marks) -> Marks:
        """These marks where they have changed, 0 elsewhere: what others have learned stands."""
        return Marks(
            self.sent if self.sent != former.sent else 0,
            self.taken if self.taken != former.taken else 0,
            self.cursor if self.cursor != former.cursor else 0,
            self.acked if self.acked != former.acked else 0,
        )

    def copy(self) -> Marks:
        return Marks(self.sent, self.taken, self.cursor, self.acked)
