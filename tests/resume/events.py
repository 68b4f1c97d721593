"""A reader of the sessions API that parses bytes by itself and keeps all that it was sent."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson

from tests.durability.reader import is_increasing, question
from tests.engine_simulator.model import Answer, expected_answer

COME_BACK = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(slots=True)
class Connection:
    """One connection as the reader saw it. Times are of ``time.monotonic``."""

    cursor: int
    asked_at: float
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    """Of an answer that is no stream."""
    opening: dict[str, Any] | None = None
    new_token_at: float | None = None
    retry: int | None = None
    broken: str = ""


@dataclass(slots=True)
class Reading:
    """Everything that one reader got of one session, over all its connections."""

    session_id: str
    messages: list[dict[str, str]]
    cursor: int = 0
    """The last event id, as an ``EventSource`` would send it back."""
    tokens: list[tuple[int, str]] = field(default_factory=list)
    ends: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    controls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    """After which it has to come back."""
    qualities: list[dict[str, Any]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """What does not belong into the stream."""
    connections: list[Connection] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.tokens)

    @property
    def seq(self) -> int:
        """The last token it has."""
        return self.tokens[-1][0] if self.tokens else 0

    @property
    def last(self) -> Connection:
        return self.connections[-1]

    @property
    def answer(self) -> Answer:
        """The answer without any fault."""
        return expected_answer(self.messages)

    @property
    def end(self) -> dict[str, Any] | None:
        return self.ends[-1][1] if self.ends else None

    def must_be_whole(self, *errors: str) -> None:
        """Assert: the answer without any fault, byte by byte, nothing twice, its end once; and that
        it was interrupted by ``errors`` only."""
        assert self.strays == [], self
        assert {error["code"] for error in self.errors} == set(errors), self.errors
        assert is_increasing([seq for seq, _ in self.tokens]), self.tokens
        assert self.text == self.answer.text, (self.trouble, self.text[-60:])
        assert [name for name, _ in self.ends] == ["done"], (self.ends, self.trouble)
        assert self.end is not None
        assert self.end["state"] == "completed"
        assert self.end["finish_reason"] == self.answer.finish_reason
        assert self.end["seq"] == self.cursor == self.answer.completion_tokens + 1
        assert self.end["usage"]["completion_tokens"] == self.answer.completion_tokens

    @property
    def trouble(self) -> str:
        last = self.last
        return f"{self.session_id}: {len(self.connections)} connections, at {self.cursor}, {last}"

    def take(self, event: bytes) -> None:
        """One event or comment, without its blank line."""
        fields: dict[str, str] = {}
        for line in event.decode().split("\n"):
            if not line.startswith(":"):
                name, _, value = line.partition(": ")
                assert name not in fields, event
                fields[name] = value
        connection = self.last
        if "retry" in fields:
            connection.retry = int(fields["retry"])
        if "data" not in fields:
            if "id" in fields or "event" in fields:
                self.strays.append(f"an event without data: {fields}")
            return
        name, data = fields.get("event", "message"), orjson.loads(fields["data"])
        if "id" in fields:
            seq = int(fields["id"])
            if seq <= self.cursor:
                self.strays.append(f"{name} {seq} after {self.cursor}")
            if data.get("seq") != seq:
                self.strays.append(f"{name} says {data.get('seq')} but has id {seq}")
            self.cursor = seq
        if name == "token":
            if connection.new_token_at is None:
                connection.new_token_at = time.monotonic()
            self.tokens.append((data["seq"], data["text"]))
        elif name in ("done", "error"):
            self.ends.append((name, data))
        elif name == "session":
            if connection.opening is not None or "id" in fields:
                self.strays.append(f"a second opening, or one with an id: {fields}")
            connection.opening = data
        elif name == "interrupted" and "id" not in fields:
            self.errors.append(data["error"])
        elif name in ("attempt", "recovering", "recovered"):
            self.controls.append((name, data))
        elif name == "quality":
            self.qualities.append(data)
        else:
            self.strays.append(f"{name}: {data}")


class Client:
    """Asks any of several gateways, on a new connection each time.

    async with Client(stack.urls, key) as client:
        reading = await client.create(question("Hello", 30))
        await client.read(reading, leave_at=7)
        await client.read(reading, gateway=1)
        reading.must_be_whole()
    """

    def __init__(self, urls: Sequence[str], key: str, *, tls: ssl.SSLContext | None = None) -> None:
        self.urls = list(urls)
        self._tls = tls
        self._headers = {"authorization": f"Bearer {key}"}

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls or True),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.http.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        gateway: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """A plain request: status, and the JSON of the answer (None without a body)."""
        async with self.http.request(
            method, self.urls[gateway] + path, json=body, headers=headers
        ) as response:
            data = await response.read()
            return response.status, orjson.loads(data) if data else None

    async def create(
        self,
        messages: list[dict[str, str]],
        *,
        gateway: int = 0,
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> Reading:
        """Begin a session."""
        body = {"model": "sim-model", "messages": messages, "temperature": 0, **parameters}
        status, answer = await self.call(
            "POST", "/v1/sessions", body, gateway=gateway, headers=headers
        )
        assert status == 201, answer
        return Reading(answer["id"], messages)

    async def read(
        self,
        reading: Reading,
        *,
        gateway: int = 0,
        leave_at: int | None = None,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        cursor: str | None = None,
    ) -> Reading:
        """One connection, from the reading's cursor to its end, or until token ``leave_at`` is there."""
        sent = {"last-event-id": str(reading.cursor) if cursor is None else cursor}
        connection = Connection(reading.cursor, time.monotonic())
        reading.connections.append(connection)
        url = f"{self.urls[gateway]}/v1/sessions/{reading.session_id}/events{query}"
        try:
            async with self.http.get(url, headers={**sent, **(headers or {})}) as response:
                connection.status, connection.headers = response.status, response.headers
                if response.status != 200:
                    data = await response.read()
                    connection.body = orjson.loads(data) if data else None
                    return reading
                buffer = b""
                async for data in response.content.iter_any():
                    *events, buffer = (buffer + data).split(b"\n\n")
                    for event in events:
                        reading.take(event)
                    if leave_at is not None and reading.seq >= leave_at:
                        response.close()
                        return reading
                if buffer:
                    connection.broken = f"it ended inside an event: {buffer!r}"
        except COME_BACK as exc:
            connection.broken = repr(exc)
        return reading

    async def read_on(
        self, reading: Reading, *, gateways: Iterable[int] = (0,), seconds: float = 30.0
    ) -> Reading:
        """Come back, to one gateway after the other, until the end was told or a 204 says so."""
        order = list(gateways)
        async with asyncio.timeout(seconds):
            while not reading.ends:
                gateway = order[len(reading.connections) % len(order)]
                await self.read(reading, gateway=gateway)
                if reading.last.status == 204:
                    break
                await asyncio.sleep(0.02)
        return reading


def urls(stack: Any) -> list[str]:
    return [gateway.url for gateway in stack.gateways]


def states(stack: Any, readings: Iterable[Reading]) -> dict[str, int]:
    """How many of the sessions are in which stored state."""
    rows = stack.sql(
        "SELECT state, count(*) FROM streaming_streamsession WHERE id = ANY(%s::uuid[]) GROUP BY 1",
        [reading.session_id for reading in readings],
    )
    return dict(rows)


__all__ = ["Client", "Connection", "Reading", "question", "states", "urls"]
