"""A network between a reader and a gateway that can be held up, with little room in it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self

ROOM = 2048
"""Bytes that the system keeps for whoever does not read; it makes more of very few."""


class SlowNetwork:
    """Forwards to one port of this machine; ``hold`` lets nothing through until ``release``.

    Use as an async context manager. What the gateway sends meanwhile fills the buffers, which are
    small, and then waits on its side.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._target))
        from_gateway, gateway = await asyncio.open_connection(sock=sock, limit=ROOM // 2)
        upwards = asyncio.create_task(_pump(reader, gateway, None))
        try:
            await _pump(from_gateway, writer, self._flows)
        except asyncio.CancelledError:
            pass  # the end of the test; the server of asyncio would only complain
        finally:
            upwards.cancel()
            await asyncio.gather(upwards, return_exceptions=True)
            for side in (writer, gateway):
                side.transport.abort()
            self._tasks.discard(task)


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event | None
) -> None:
    with suppress(OSError):
        while data := await source.read(ROOM // 2):
            if flows is not None:
                await flows.wait()
            sink.write(data)
            await sink.drain()
