"""An HTTP/2 reader that can do what clients do to their streams: reset one, say goodbye, or just go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset


@dataclass(slots=True)
class Stream:
    """What one stream of the connection got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: bool = False

    @property
    def events(self) -> int:
        """Server-sent events with text so far."""
        return self.body.count(b'"content":"')


class Http2Reader:
    """One connection. Use ``http2_reader``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.streams: dict[int, Stream] = {}

    def ask(self, path: str, key: str, body: Any) -> int:
        """POST ``body`` as JSON; the number of its stream."""
        data = orjson.dumps(body)
        number = self.h2.get_next_available_stream_id()
        headers: Mapping[str, str] = {
            ":method": "POST",
            ":scheme": "https",
            ":authority": "127.0.0.1",
            ":path": path,
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "content-length": str(len(data)),
        }
        self.streams[number] = Stream()
        self.h2.send_headers(number, list(headers.items()))
        self.h2.send_data(number, data, end_stream=True)
        self._flush()
        return number

    def reset(self, number: int) -> None:
        """RST_STREAM: this answer is not wanted any more, the connection is."""
        self.h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()

    def say_goodbye(self) -> None:
        """GOAWAY, and then the end of the connection, as clients do that are closed."""
        self.h2.close_connection()
        self._flush()
        self._writer.close()

    def cut(self) -> None:
        """Without a word."""
        self._writer.transport.abort()

    async def read(self) -> None:
        """Take what comes, to the end of the connection."""
        while data := await self._reader.read(65536):
            for event in self.h2.receive_data(data):
                self._take(event)
            self._flush()

    def _take(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            stream = self.streams[event.stream_id]
            stream.headers = dict(event.headers)
            stream.status = int(stream.headers[":status"])
        elif isinstance(event, DataReceived):
            self.streams[event.stream_id].body += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.streams[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.streams[event.stream_id].reset = True

    def _flush(self) -> None:
        if data := self.h2.data_to_send():
            self._writer.write(data)


@asynccontextmanager
async def http2_reader(port: int, tls: ssl.SSLContext) -> AsyncIterator[Http2Reader]:
    """A connection to 127.0.0.1 that is read all the time; ``tls`` must offer ``h2``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    assert agreed == "h2", agreed
    connection = Http2Reader(reader, writer)
    connection.h2.initiate_connection()
    connection._flush()
    reading = asyncio.create_task(connection.read())
    try:
        yield connection
    finally:
        writer.transport.abort()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
