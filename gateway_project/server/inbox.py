"""What a connection waits with, without the kilobytes of asyncio's own.

``asyncio.Queue`` has three deques and an event with a fourth, each of 760 bytes; of an idle stream
that would be a good part of its memory.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Waiters:
    """Who waits for something that happens again and again."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Return when somebody wakes us."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._futures:
                self._futures.remove(future)
            raise

    def wake(self) -> None:
        """Wake all who wait by now."""
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)


class Inbox:
    """The messages of the server to one application, first in, first out."""

    __slots__ = ("_messages", "_waiters")

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._waiters = Waiters()

    def put_nowait(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._waiters.wake()

    async def get(self) -> dict[str, Any]:
        while not self._messages:
            await self._waiters.wait()
        return self._messages.pop(0)
