"""A relay before an engine that cuts an answer after a given number of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

ASKED = b"POST /v1/completions"
# The gateway's own questions, of one token.
PULSE = b"x-request-id: pulse-"
EVENT = b"data: {"


class Scissors:
    """Shared by the relays of all nodes: only the first answer after :meth:`arm` is cut."""

    def __init__(self) -> None:
        self._after: int | None = None
        self.has_cut = False

    def arm(self, after: int) -> None:
        """Cut the next answer after ``after`` events."""
        self._after = after
        self.has_cut = False

    def take(self) -> int | None:
        after, self._after = self._after, None
        return after


class Relay:
    """Listens on ``port`` and passes bytes on to the engine on port ``engine``."""

    def __init__(self, engine: int, scissors: Scissors) -> None:
        self._engine = engine
        self._scissors = scissors
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._engine)
        except OSError:
            writer.close()
            return
        connection = _Connection(self._scissors)
        pumps = [
            asyncio.create_task(_pump(reader, far_writer, connection.asked)),
            asyncio.create_task(_pump(far_reader, writer, connection.answered)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # One side has ended, so does the other.
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            far_writer.close()


class _Connection:
    """``asked`` and ``answered`` see what is passed on; the second says how much of it may pass."""

    def __init__(self, scissors: Scissors) -> None:
        self._scissors = scissors
        self._left: int | None = None

    def asked(self, data: bytes) -> int:
        if ASKED in data and PULSE not in data.lower():
            self._left = self._scissors.take()
        return len(data)

    def answered(self, data: bytes) -> int:
        if self._left is None:
            return len(data)
        at = -1
        while (at := data.find(EVENT, at + 1)) >= 0:
            if self._left == 0:
                self._scissors.has_cut = True
                return at
            self._left -= 1
        return len(data)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[bytes], int]
) -> None:
    while data := await reader.read(65536):
        passing = seen(data)
        writer.write(data[:passing])
        await writer.drain()
        if passing < len(data):
            return
