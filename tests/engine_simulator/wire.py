"""A small HTTP/1.1 server that keeps its sockets in its own hands.

Faults need what a web framework hides: half a chunk, a reset, silence, and the certainty that
bytes have left before the process kills itself. A client's disconnect cancels the handler at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import struct
import sys
import termios
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

Handler = Callable[["Request", "Connection"], Awaitable[None]]
_HIGH_WATER = 256 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One client connection: reads requests, runs the handler for one at a time, writes replies."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, open_connections: set[Connection]) -> None:
        self._handler = handler
        self._open_connections = open_connections
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._keep_alive = True

    def __repr__(self) -> str:
        return f"<Connection [{'busy' if self._task else 'idle'}]>"

    @property
    def is_idle(self) -> bool:
        """Say whether no request is being answered."""
        return self._task is None

    @property
    def is_local(self) -> bool:
        """Say whether this is the control socket."""
        return bool(self.transport.get_extra_info("socket").family == socket.AF_UNIX)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # asyncio does this only for sockets it has made itself; without it every stream's second
        # write waits 40 ms for a delayed acknowledgement.
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._writable.set()
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._start_next()

    # Requests.

    def _start_next(self) -> None:
        if self._task is not None or self.transport.is_closing():
            return
        request = self._take_request()
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    def _take_request(self) -> Request | None:
        """Cut one whole request out of the buffer, if there is one."""
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        method, target, version = first.split(" ")
        self._keep_alive = version == "HTTP/1.1" and headers.get("connection", "") != "close"
        url = urlsplit(target)
        return Request(method, url.path, dict(parse_qsl(url.query)), headers, rest[:length])

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request, self)
        except Exception:  # noqa: BLE001 - a bug in the simulator must be seen, not hang a test
            traceback.print_exc(file=sys.stderr)
            self.transport.abort()
        finally:
            self._task = None
        if self._keep_alive:
            self._start_next()
        else:
            self.transport.close()

    # Replies.

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a whole body."""
        self._head(
            status, content_type, {"Content-Length": str(len(body)), **(headers or {})}, body
        )

    def reply_json(
        self, document: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with a JSON document."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        self.reply(status, text.encode("utf-8", "backslashreplace"), headers=headers)

    def start_events(self, headers: Mapping[str, str]) -> None:
        """Begin a chunked event stream."""
        self._head(200, "text/event-stream", {"Transfer-Encoding": "chunked", **headers}, b"")

    def _head(
        self, status: int, content_type: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Type: {content_type}")
        if not self._keep_alive:
            lines.append("Connection: close")
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def send_chunk(self, data: bytes | bytearray) -> None:
        """Send one chunk of the stream."""
        self.transport.write(b"".join((b"%x\r\n" % len(data), data, b"\r\n")))

    def end_events(self) -> None:
        """End the stream as HTTP wants it."""
        self.transport.write(b"0\r\n\r\n")

    async def drain(self) -> None:
        """Wait until the client has read enough for more to be written."""
        if not self._writable.is_set():
            await self._writable.wait()

    async def flush(self) -> None:
        """Wait until the client's kernel has everything written so far (a second at most)."""
        sock = self.transport.get_extra_info("socket")
        for _ in range(500):
            unsent = self.transport.get_write_buffer_size()
            if not unsent:
                waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
                unsent = struct.unpack("i", waiting)[0]
            if not unsent:
                return
            await asyncio.sleep(0.002)

    def close(self) -> None:
        """Close after what has been written (FIN)."""
        self._keep_alive = False
        self.transport.close()

    def reset(self) -> None:
        """Break the connection (RST)."""
        self._keep_alive = False
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
