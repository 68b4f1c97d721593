"""A TCP proxy that cuts connections: at will, or each one after a fixed time."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards to one port of this machine. ``lifetime``: seconds after which a connection is cut.

    Use as an async context manager. ``cut`` ends all connections and lets nobody in until ``mend``.
    ``hush`` keeps those that there are, and lets nothing through them any more, as a firewall does
    that has forgotten them; new ones work.
    """

    def __init__(self, port: int, *, lifetime: float | None = None) -> None:
        self._target = port
        self._lifetime = lifetime
        self._is_cut = False
        self._connections: set[asyncio.Task[None]] = set()
        self._hushed: set[asyncio.Task[None]] = set()
        self.cuts = 0
        # Bound at once, so that the address can be given away before anything is forwarded.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url_of(self, url: str) -> str:
        """``url`` by way of this proxy."""
        parts = urlsplit(url)
        netloc = f"{parts.netloc.rpartition(':')[0]}:{self.port}"
        return urlunsplit(parts._replace(netloc=netloc))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        await self._end_all()

    async def cut(self) -> None:
        self._is_cut = True
        await self._end_all()

    def mend(self) -> None:
        self._is_cut = False

    def hush(self) -> int:
        """Silence all connections; how many."""
        self._hushed |= self._connections
        return len(self._connections)

    async def _end_all(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            from_upstream, upstream = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.timeout(self._lifetime):
                await _either(
                    self._pump(task, reader, upstream), self._pump(task, from_upstream, writer)
                )
        except TimeoutError:
            self.cuts += 1
        except (OSError, asyncio.CancelledError):
            pass  # cancelled by us; the server of asyncio would only complain
        finally:
            self._connections.discard(task)
            self._hushed.discard(task)
            for side in (writer, upstream):
                if side is not None:
                    side.transport.abort()

    async def _pump(
        self,
        connection: asyncio.Task[None],
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if connection not in self._hushed:
                    sink.write(data)
                    await sink.drain()


async def _either(*pumps: object) -> None:
    tasks = [asyncio.ensure_future(pump) for pump in pumps]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)  # what the other direction still has
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
