"""The readers' own HTTP and WebSocket: as little as they need, and nothing of the product's.

One object is one connection with one request. What comes is given on at once, with the time; the
future ``closed`` is done when nothing more will come.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

_ZERO_MASK = b"\0\0\0\0"  # a frame of a client must be masked; this mask changes nothing
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


def request(
    method: str, url: str, path: str, headers: Mapping[str, str], body: Any = None
) -> bytes:
    """The bytes of a request; ``body`` becomes JSON."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Exchange(asyncio.Protocol):
    """Sends ``request`` and gives each piece of the answer's body to ``take``.

    The body of a refusal is kept in ``refusal`` instead.
    """

    def __init__(self, request: bytes, take: Callable[[bytes], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.deaf = False
        """It was cut: what still comes is not heard."""
        self.refusal = b""
        self.complete = False
        """The body has come to its end as HTTP wants it."""
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.last_byte = self.began = loop.time()
        self._loop = loop
        self._request = request
        self._take = take
        self._buffer = b""
        self._left = -1  # of the body or of the chunk; -1: the size of a chunk comes next
        self._chunked = False

    async def connect(self, url: str) -> None:
        """Raises ``OSError``."""
        parts = urlsplit(url)
        await self._loop.create_connection(lambda: self, parts.hostname, parts.port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.last_byte = self._loop.time()
        self._buffer += data
        if not self.status and not self._read_head():
            return
        self._read_body()
        if self.complete:
            self.transport.close()

    def _read_head(self) -> bool:
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        self.status = int(first.split(" ", 2)[1])
        self._buffer = rest
        self._chunked = self.headers.get("transfer-encoding") == "chunked"
        if not self._chunked:
            empty = self.status in (101, 204)
            self._left = 0 if empty else int(self.headers.get("content-length", "0"))
        return True

    def _read_body(self) -> None:
        if not self._chunked:
            body, self._buffer = self._buffer[: self._left], b""
            self._left -= len(body)
            self._give(body)
            self.complete = self._left <= 0
            return
        parts = []
        while self._buffer and not self.complete:
            if self._left < 0:
                line, end, rest = self._buffer.partition(b"\r\n")
                if not end:
                    break
                self._left, self._buffer = int(line, 16) + 2, rest
                if self._left == 2:
                    self.complete = True
                continue
            part = self._buffer[: self._left]
            self._buffer = self._buffer[self._left :]
            # The last two bytes of a chunk are its end of line, in whichever reads they come.
            text = part[: max(0, self._left - 2)]
            self._left -= len(part)
            if self._left == 0:
                self._left = -1
            if text:
                parts.append(text)
        self._give(b"".join(parts))

    def _give(self, body: bytes) -> None:
        if not 200 <= self.status < 300:
            self.refusal += body
        elif body and not self.deaf:
            self._take(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def cut(self, *, reset: bool = False) -> None:
        """Let go of the connection at once."""
        self.deaf = True
        if self.closed.done():
            return
        if reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class WebSocket(Exchange):
    """A WebSocket; ``take`` gets each text message. ``complete``: it was closed as it should be."""

    def __init__(
        self, url: str, path: str, headers: Mapping[str, str], take: Callable[[bytes], None]
    ) -> None:
        handshake = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            **headers,
        }
        super().__init__(request("GET", url, path, handshake), take)
        self._waiting: list[bytes] = []
        self._message = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Now or, before the handshake has been answered, after it."""
        self._send(_TEXT, json.dumps(message).encode())

    def data_received(self, data: bytes) -> None:
        self.last_byte = self._loop.time()
        self._buffer += data
        if not self.status:
            if not self._read_head():
                return
            if self.status != 101:
                self.transport.close()
                return
            self.transport.writelines(self._waiting)
        while not self.deaf and (frame := self._frame()) is not None:
            opcode, payload, is_last = frame
            if opcode == _CLOSE:
                self.complete = True
                self.transport.close()
                return
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode != _PONG:
                self._message += payload
                if is_last:
                    message, self._message = self._message, b""
                    self._take(message)

    def _frame(self) -> tuple[int, bytes, bool] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, at = buffer[1] & 127, 2
        if size == 126:
            size, at = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < at + size:
            return None
        self._buffer = buffer[at + size :]
        return buffer[0] & 15, buffer[at : at + size], bool(buffer[0] & 128)

    def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        length = bytes([128 | size]) if size < 126 else bytes([254]) + size.to_bytes(2, "big")
        frame = bytes([128 | opcode]) + length + _ZERO_MASK + payload
        if self.status == 101:
            self.transport.write(frame)
        else:
            self._waiting.append(frame)


class Events:
    """Cuts a stream of server-sent events into (id, event, data); comments are left out."""

    def __init__(self, take: Callable[[int, bytes, bytes], None]) -> None:
        self._take = take
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        *events, self._buffer = (self._buffer + data).split(b"\n\n")
        for event in events:
            seq, name, value = 0, b"", b""
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    value = line[6:]
                elif line.startswith(b"id: "):
                    seq = int(line[4:])
                elif line.startswith(b"event: "):
                    name = line[7:]
            if value:
                self._take(seq, name, value)
