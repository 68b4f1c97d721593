"""A client that reads one session to its end, whatever happens to connections and gateways.

    async with UnbrokenClient("http://127.0.0.1:8000", api_key) as client:
        session = await client.start({"model": "chat-default", "messages": […]})
        async for piece in session:
            print(piece.text, end="")

It resumes from the last token it has, with exponential backoff and jitter, whenever the connection
breaks, or is silent for longer than the gateway says it ever is (heartbeats count as life), or the
answer cannot go on for now. It never starts a second generation. Needs only httpx.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

USUAL_SILENCE = 15.0
"""Seconds of silence borne before the gateway has said what it should be."""
FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 10.0
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class ClientError(Exception):
    """The base of what this client raises."""


class NetworkError(ClientError):
    """The gateway could not be reached, or could not go on, in time; the session may still be
    resumed later."""


class ServerError(ClientError):
    """The gateway answered, and the answer is an error to show. ``code`` is stable."""

    def __init__(self, message: str, *, code: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class ContentViolation(ClientError):
    """The answer was ended by a content rule: hand it to a person for review."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is new, up to and including token ``seq``."""

    seq: int
    text: str


@dataclass(slots=True)
class SessionReader:
    """One session; iterate it once. What it learns on the way stays readable afterwards."""

    client: UnbrokenClient
    id: str
    seq: int = 0
    """The last event id received: give it to ``resume`` to go on later."""
    info: dict[str, Any] = field(default_factory=dict)
    """The ``session`` event: reference, epoch, server time, heartbeat, silence, resume window."""
    result: dict[str, Any] | None = None
    """The ``done`` event, once it has come."""
    reconnects: int = 0
    interrupted: dict[str, Any] | None = None
    """The error after which the answer last could not go on for now; it is come back for."""

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._pieces()

    async def stop(self) -> dict[str, Any]:
        """End the session for good."""
        return await self.client.call("POST", f"/v1/sessions/{self.id}/stop")

    async def ack(self) -> None:
        """Say that everything received so far is shown."""
        await self.client.call("POST", f"/v1/sessions/{self.id}/ack", {"seq": self.seq})

    @property
    def silence(self) -> float:
        """Seconds without a byte after which a connection is given up."""
        if self.client.watchdog is not None:
            return self.client.watchdog
        told = self.info.get("silence_seconds")
        return float(told) if isinstance(told, int | float) and told > 0 else USUAL_SILENCE

    async def _pieces(self) -> AsyncIterator[Piece]:
        backoff = FIRST_BACKOFF
        give_up = asyncio.get_running_loop().time() + self.client.patience
        while True:
            before = self.seq
            try:
                async for piece in self._one_connection():
                    yield piece
                if self.result is not None:
                    return
            except (httpx.TransportError, TimeoutError) as exc:
                if asyncio.get_running_loop().time() > give_up:
                    raise self._given_up(repr(exc)) from exc
            if self.seq > before:
                backoff = FIRST_BACKOFF
                give_up = asyncio.get_running_loop().time() + self.client.patience
            elif asyncio.get_running_loop().time() > give_up:
                raise self._given_up("no progress")
            self.reconnects += 1
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    def _given_up(self, why: str) -> NetworkError:
        if self.interrupted is not None:
            why = f"{self.interrupted['code']}: {self.interrupted['message']}"
        return NetworkError(f"gave up after token {self.seq}: {why}")

    async def _one_connection(self) -> AsyncIterator[Piece]:
        """Read until the end of the session or of the connection. Raises transport errors."""
        request = self.client.http.build_request(
            "GET",
            f"/v1/sessions/{self.id}/events",
            headers={"last-event-id": str(self.seq)},
            timeout=httpx.Timeout(10.0, read=None),
        )
        async with asyncio.timeout(self.silence):
            response = await self.client.http.send(request, stream=True)
        async with aclosing(response):
            if response.status_code == 204:
                self.result = self.result or {}
                return
            if response.status_code in _RETRIED:
                return
            if response.status_code != 200:
                raise _error_of(response.status_code, await response.aread())
            buffer = b""
            received = response.aiter_raw()
            # What the gateway says of its silence comes with the first event, and holds at once.
            while data := await self._next(received):
                *events, buffer = (buffer + data).split(b"\n\n")
                for event in events:
                    piece = self._take(event)
                    if piece is not None:
                        yield piece

    async def _next(self, received: AsyncIterator[bytes]) -> bytes:
        """The next bytes; none at the end. Raises ``TimeoutError`` after too long a silence."""
        async with asyncio.timeout(self.silence):
            return await anext(received, b"")

    def _take(self, event: bytes) -> Piece | None:
        fields = dict(
            line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and line[0] != 58
        )
        if b"data" not in fields:
            return None
        name, data = fields.get(b"event", b"message"), json.loads(fields[b"data"])
        if name == b"session":
            self.info = data
        elif name == b"interrupted":
            self.interrupted = data["error"]
        elif name == b"token" and data["seq"] > self.seq:
            self.seq, self.interrupted = data["seq"], None
            return Piece(data["seq"], data["text"])
        elif name == b"done":
            self.seq, self.result = data["seq"], data
            if data["finish_reason"] == "content_filter":
                raise ContentViolation(f"session {self.id} was ended by a content rule")
        elif name == b"error":
            self.seq, self.result = data.get("seq", self.seq), data
            raise ServerError(data["error"]["message"], code=data["error"]["code"])
        return None


class UnbrokenClient:
    """``user``: the end user whose sessions are begun and read.
    ``watchdog``: seconds without a byte after which a connection is given up (None: as the gateway
    says, which knows how often it gives a sign of life).
    ``patience``: seconds without progress after which ``NetworkError`` is raised."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        watchdog: float | None = None,
        user: str | None = None,
        patience: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.watchdog = watchdog
        self.patience = patience
        headers = {"authorization": f"Bearer {api_key}"}
        if user is not None:
            headers["x-unbroken-user"] = user
        self.http = httpx.AsyncClient(base_url=base_url, headers=headers, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.http.aclose()

    async def start(
        self, request: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> SessionReader:
        """Begin an answer. Raises ``ServerError``; with an idempotency key a retry is harmless."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        body = await self.call("POST", "/v1/sessions", dict(request), headers=headers)
        return SessionReader(self, body["id"], info=body)

    def resume(self, session_id: str, seq: int = 0) -> SessionReader:
        """Go on with a session after token ``seq``."""
        return SessionReader(self, session_id, seq)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A plain request; the JSON of the answer. Raises ``ServerError`` or ``NetworkError``."""
        try:
            response = await self.http.request(method, path, json=body, headers=headers)
        except httpx.TransportError as exc:
            raise NetworkError(f"{method} {path}: {exc!r}") from exc
        if response.status_code >= 400:
            raise _error_of(response.status_code, response.content)
        return response.json()


def _error_of(status: int, body: bytes) -> ServerError:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ServerError(f"HTTP {status}", status=status)
    return ServerError(error["message"], code=error["code"], status=status)
