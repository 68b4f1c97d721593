"""A WebSocket client that checks every message against the schema and sorts them by session."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.engine_simulator.model import expected_answer
from tests.websocket.schema import check_message, validator

Message = dict[str, Any]


def chat(text: str, tokens: int, **parameters: Any) -> Message:
    """A request whose answer has ``tokens`` tokens."""
    content = f"{text} [[tokens={tokens}]][[alphabet=mixed]]"
    messages = [{"role": "user", "content": content}]
    return {"model": "sim-model", "messages": messages, "temperature": 0, **parameters}


def answer_to(request: Message) -> str:
    return expected_answer(request["messages"]).text


@dataclass(slots=True)
class Followed:
    """What one socket was told about one session."""

    opening: Message
    cursor: int
    text: str = ""
    kinds: list[str] = field(default_factory=list)
    end: Message | None = None

    def take(self, message: Message) -> None:
        assert self.end is None, f"{message} after the end"
        kind = message["type"]
        if not self.kinds or self.kinds[-1] != kind:
            self.kinds.append(kind)
        if kind == "token":
            assert message["seq"] > self.cursor
            self.cursor = message["seq"]
            self.text += message["text"]
        elif kind in ("done", "error") and "seq" in message:
            assert message["seq"] > self.cursor
            self.cursor = message["seq"]
            self.end = message


@dataclass(slots=True)
class Talk:
    """One open socket. ``others``: what belongs to no session that is followed."""

    socket: ClientConnection
    sessions: dict[str, Followed] = field(default_factory=dict)
    others: list[Message] = field(default_factory=list)
    log: list[Message] = field(default_factory=list)
    close_code: int | None = None

    async def say(self, type_: str, **fields: Any) -> None:
        message = {"type": type_, **fields}
        validator("client", type_).validate(message)
        await self.socket.send(json.dumps(message))

    async def read_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Take messages until the condition holds. Raises ``TimeoutError`` or ``ConnectionClosed``."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.take(json.loads(await self.socket.recv()))

    def take(self, message: Message) -> None:
        check_message(message)
        self.log.append(message)
        message = message.get("data", message)
        session = message.get("session")
        if message["type"] == "session":
            self.sessions[session] = Followed(message, message["seq"])
        elif session in self.sessions and self.sessions[session].end is None:
            self.sessions[session].take(message)
        else:
            self.others.append(message)

    async def begin(self, request: Message, **fields: Any) -> Followed:
        """Start a session; returns once it is told of."""
        known = len(self.sessions)
        await self.say("start", request=request, **fields)
        await self.read_until(lambda: len(self.sessions) > known)
        return list(self.sessions.values())[-1]

    async def begin_again(self, session: str, seq: int, **fields: Any) -> Followed:
        await self.say("resume", session=session, seq=seq, **fields)
        await self.read_until(lambda: session in self.sessions)
        return self.sessions[session]

    async def error_of(self, raw: str | bytes) -> Message:
        """Send anything; the error that answers it."""
        known = len(self.others)
        await self.socket.send(raw)
        await self.read_until(lambda: any(m["type"] == "error" for m in self.others[known:]), 3)
        return next(m for m in self.others[known:] if m["type"] == "error")

    async def read_to_close(self, seconds: float = 5.0) -> int:
        """Read to the end of the connection; its close code."""
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await self.read_until(lambda: False, seconds)
        assert closed.value.rcvd is not None, "no closing handshake"
        return closed.value.rcvd.code


@asynccontextmanager
async def talk(
    url: str, key: str, user: str | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Talk]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if user is not None:
        headers["X-Unbroken-User"] = user
    async with connect(
        url, additional_headers=headers, ping_interval=None, close_timeout=1, ssl=tls
    ) as socket:
        yield Talk(socket)
