"""A second attempt beside one that has gone silent; the first to produce the next token goes on."""

from __future__ import annotations

import asyncio

from streaming.fleet.continuations import Booking
from streaming.runtime.attempt import AttemptRun


class Hedge:
    """``run`` is set once it is prepared; ``task`` runs it and returns its finish reason."""

    __slots__ = ("booking", "first", "run", "task")

    def __init__(self, first: AttemptRun, booking: Booking) -> None:
        self.first = first
        self.booking = booking
        self.run: AttemptRun | None = None
        self.task: asyncio.Task[str]

    def __repr__(self) -> str:
        return f"<Hedge of attempt {self.first.number} on {self.booking.node.name}>"

    def lose(self) -> None:
        """The first attempt has produced the next token."""
        if self.run is not None:
            self.run.is_overtaken = True
        self.task.cancel()
