"""One POST over one connection to an engine, and its reply as it comes in.

A client for everything costs a failover more than all our own work on it, and every token a walk
through its layers. Streams need little of HTTP/1.1: a request with a length, a reply in chunks. The
connections are ``spares``' and are made as all others; short requests go through httpx.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Self

from aiohttp import ClientError, ClientPayloadError, ServerDisconnectedError

from streaming.engines.sockets import EngineConnection

MOST_HELD = 64 * 1024
"""Bytes of a reply that may wait for their reader before the connection is read no further."""
LONGEST_HEAD = 64 * 1024
LONGEST_LINE = 4 * 1024
MOST_IN_ADVANCE = 8
"""Heads of informational replies (1xx) that may come together before the real one."""


def request_head(path: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a POST with a body of ``length`` bytes. Raises ``ValueError`` for what is none."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header with a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Reply:
    """What comes back on ``connection``, until ``close``: a head, then the body.

    The body comes by ``async for``, each item all that has come since the one before; or by
    ``pour``. Reading it raises what broke the connection: ``OSError``, or ``aiohttp.ClientError``
    where the system had no error.
    ``patience``: seconds to wait for anything; None: others look after that.
    """

    def __init__(self, connection: EngineConnection, patience: float | None = None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_whole = False
        """Whether all of it has come."""
        self.connection = connection
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._context: Context
        """In which ``_take`` is called."""
        self._is_full = False
        """Whether it wanted no more."""
        self._parts: list[bytes] = []
        self._held = 0
        self._is_paused = False
        self._rest = b""
        """Of a head or a chunk's size: what has come of it."""
        self._error: BaseException | None = None
        self._is_chunked = False
        self._is_last = False
        """Whether the chunk that says that there are no more has come."""
        self._left: int | None = None
        """Bytes of the body, or of the chunk and its line end, that are still to come."""
        connection.reply = self

    def __repr__(self) -> str:
        state = "whole" if self.is_whole else f"failed: {self._error!r}" if self._error else "open"
        return f"<Reply {self.status or 'without a head yet'}, {state}>"

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection is good for another request."""
        return (
            self.is_whole
            and self._error is None
            and not self._is_paused  # nobody would resume it
            and (self._is_chunked or self._left is not None)
            and "close" not in self.headers.get("connection", "").lower()
        )

    # Its reader's side

    async def head(self) -> None:
        """Return when the head has come."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._news()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.is_whole:
                raise StopAsyncIteration
            await self._news()
        return self._taken()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Give ``take`` what comes, at the moment at which it comes, until it wants no more for now.

        No task is woken for a read, nor does it wait for a turn of the loop. ``take`` says whether
        it wants more, and raises nothing; it runs in the context of who pours. False: all has come.
        """
        self._is_full = False
        while not self._is_full:
            if self._parts:
                self._is_full = not take(self._taken())
            elif self._error is not None:
                raise self._error
            elif self.is_whole:
                return False
            else:
                if self._patience is None:  # else each read has its own
                    self._take, self._context = take, copy_context()
                try:
                    await self._news()
                finally:
                    self._take = None
        return True

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        self._held = 0
        if self._is_paused:
            self._is_paused = False
            if self.connection.transport is not None:
                self.connection.transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            if self._patience is None:
                await self._waiter
            else:
                async with asyncio.timeout(self._patience):
                    await self._waiter
        finally:
            self._waiter = None

    # Its connection's side

    def feed(self, data: bytes) -> None:
        """More has come."""
        if self._error is not None or self.is_whole:
            self._fail(ClientPayloadError("there is more than the reply"))
            return
        try:
            if not self.status:
                data = self._take_head(data)
            if data:
                self._take_body(data)
        except ValueError as exc:
            self._fail(ClientError(f"not HTTP: {exc}"))
        if self._take is not None and self._is_awaited:
            if self._parts:
                self._is_full = not self._context.run(self._take, self._taken())
            if not self._is_full and self._error is None and not self.is_whole:
                return
            self._take = None
        if self._held > MOST_HELD and not self._is_paused and self.connection.transport is not None:
            self._is_paused = True
            self.connection.transport.pause_reading()
        self._wake()

    def lost(self, error: BaseException | None) -> None:
        """The connection is over."""
        if self.is_whole or self._error is not None:
            return
        if error is not None:
            self._error = error
        elif not self.status:
            self._error = ServerDisconnectedError()
        elif self._is_chunked or self._left is not None:
            self._error = ClientPayloadError("the connection ended in the middle of the reply")
        else:
            self.is_whole = True
        self._wake()

    @property
    def _is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if self.connection.transport is not None:
            self.connection.transport.abort()

    def _take_head(self, data: bytes) -> bytes:
        """Read the head once all of it is there; the body's beginning behind it."""
        data, self._rest = self._rest + data, b""
        for _ in range(MOST_IN_ADVANCE + 1):
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if not data.startswith(b"HTTP/1."[: len(data)]) or len(data) > LONGEST_HEAD:
                    raise ValueError(f"{data[:40]!r}")
                self._rest = data
                return b""
            line, *fields = data[:end].decode("latin-1").split("\r\n")
            data = data[end + 4 :]
            version, _, status = line.partition(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError(f"{line[:40]!r}")
            code = int(status[:3])
            if code >= 200:
                break
        else:
            raise ValueError("one informational reply after the other")
        for field in fields:
            name, _, value = field.partition(":")
            self.headers[name.lower()] = value.strip()
        if version == "HTTP/1.0":
            self.headers["connection"] = "close"
        self._is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if self._is_chunked:
            self._left = 0
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            self.is_whole = self._left == 0
        elif code in (204, 304):
            self._left, self.is_whole = 0, True
        self.status = code
        return data

    def _take_body(self, data: bytes) -> None:
        if self._is_chunked:
            self._take_chunks(data)
        elif self._left is None:
            self._keep(data)
        else:
            if len(data) > self._left:
                raise ValueError("more than its length")
            self._left -= len(data)
            self._keep(data)
            self.is_whole = self._left == 0

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._held += len(part)

    def _take_chunks(self, data: bytes) -> None:
        """Keep what is in the chunks. Of each, its last two bytes are the end of a line."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size, left = 0, len(data), self._left or 0
        while at < size:
            if left:
                end = at + left
                if part := data[at : max(at, end - 2)]:
                    self._keep(part)
                left = max(0, end - size)
                at = min(end, size)
            else:
                end = data.find(b"\r\n", at)
                if end < 0 and size - at < LONGEST_LINE:
                    self._rest = data[at:]
                    break
                if end < 0:  # else the search would begin anew, and never end
                    raise ValueError(f"a line without an end: {data[at : at + 40]!r}")
                line, at = data[at:end], end + 2
                if not self._is_last:
                    length = int(line.partition(b";")[0], 16)
                    if length < 0:
                        raise ValueError(f"no size of a chunk: {line[:40]!r}")
                    self._is_last = length == 0
                    left = length and length + 2
                elif not line:  # behind the last chunk there may be fields, up to an empty line
                    self.is_whole = True
                    if at < size:
                        raise ValueError("there is more than the reply")
        self._left = left
