"""A reader of ``bench.load`` that asks over a WebSocket: as cheap, and as strict in the end."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from bench.load import TAIL, Reader, messages_of

SEQ = re.compile(rb'"seq":(\d+)')
DONE = b'"type":"done"'


class SocketReader(Reader):
    """Sends ``start`` once the handshake is answered; ``seq`` of the messages is counted while it measures."""

    def _request(self) -> bytes:
        job = self._job
        self._tail_size = max(TAIL, 128)
        self._is_open = False
        key = base64.b64encode(os.urandom(16)).decode()
        return (
            f"GET /ws/chat/ HTTP/1.1\r\nHost: {urlsplit(job.url).netloc}\r\n"
            f"Authorization: Bearer {job.key}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        ).encode()

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            self.seen.sent = time.monotonic() + self._offset
            self.transport.write(_masked(self._start()))
        super().data_received(data)

    def _start(self) -> bytes:
        job = self._job
        request = {
            "model": job.model,
            "messages": messages_of(job, self._index),
            "max_tokens": job.tokens,
            "temperature": 0,
        }
        return json.dumps({"type": "start", "request": request}).encode()

    def _take_gateway(self, data: bytes, now: float) -> None:
        last = data.rfind(b'"seq":')
        match = SEQ.match(data, last) if last >= 0 else None
        # A number that is cut off is read as a smaller one, and again with the next read.
        if match is not None:
            seq = min(int(match[1]), self._job.tokens)
            if seq > self._count:
                self._note(seq, now)
        if DONE in data:
            self.seen.ended = True
            self.transport.close()

    def _text(self, data: bytes) -> str:
        messages = [json.loads(payload) for payload in _texts(data.partition(b"\r\n\r\n")[2])]
        for message in messages:
            if message["type"] == "session":
                self.seen.session = message["session"]
        return "".join(message["text"] for message in messages if message["type"] == "token")


def _masked(payload: bytes) -> bytes:
    """A text frame as clients send it."""
    mask = os.urandom(4)
    assert 125 < len(payload) < 2**16
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return struct.pack("!BBH", 0x81, 0x80 | 126, len(payload)) + mask + masked


def _texts(data: bytes) -> Iterator[bytes]:
    """The payloads of the whole text frames; those of servers have no mask."""
    at = 0
    while at + 2 <= len(data):
        kind, size = data[at] & 0x0F, data[at + 1] & 0x7F
        at += 2
        if size == 126:
            size, at = struct.unpack_from("!H", data, at)[0], at + 2
        elif size == 127:
            size, at = struct.unpack_from("!Q", data, at)[0], at + 8
        if kind == 1 and at + size <= len(data):
            yield data[at : at + size]
        at += size
