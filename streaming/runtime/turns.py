"""Turns: attempts begin a few at a time."""

from __future__ import annotations

import asyncio
from types import TracebackType

# When a node dies under a hundred streams, their tasks would otherwise go through preparing,
# connecting and sending in step, and all readers would be served last.
AT_ONCE = 8
# A turn is for our own work; how long an engine takes to its first token is its own affair.
TURN_SECONDS = 0.003


class Turns:
    """One per process: whoever begins an attempt waits for its turn, first come, first served.

    async with turns.next() as turn:
        ...            # others begin when this is done, or ended early by turn.end()
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    def next(self) -> Turn:
        return Turn(self._free)


class Turn:
    """Ends by itself after ``TURN_SECONDS``."""

    __slots__ = ("_free", "_timer")

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Turn:
        await self._free.acquire()
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the next one begin. Does nothing the second time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._free.release()
