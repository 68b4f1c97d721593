"""A reader of the sessions API that remembers all it was told, over all its connections.

It shares no code with the product, and asserts while it reads what every reader may rely on:
seqs that only grow, ids only on tokens and the end, nothing after the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from tests.durability.stored import StoredLog, stored_log
from tests.engine_simulator.model import Answer, expected_answer
from tests.stack import Stack
from tests.websocket.schema import check_event

TROUBLE = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(slots=True)
class Story:
    """What the reader of one session has, and how it came by it. Times are of ``time.monotonic``."""

    messages: list[dict[str, str]]
    session_id: str
    text: str = ""
    cursor: int = 0
    openings: list[dict[str, Any]] = field(default_factory=list)
    controls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    comments: list[tuple[float, bytes]] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    end: tuple[str, dict[str, Any]] | None = None
    connections: int = 0

    def __repr__(self) -> str:
        return f"<Story of {self.session_id}: at {self.cursor}, {self.connections} connections, end {self.end}>"

    @property
    def answer(self) -> Answer:
        """The answer without any fault."""
        return expected_answer(self.messages)

    @property
    def is_whole(self) -> bool:
        return self.end is not None and self.end[0] == "done" and self.text == self.answer.text

    def take(self, event: bytes) -> None:
        """One event or comment, without its blank line."""
        assert self.end is None, f"{event!r} after the end"
        fields: dict[str, str] = {}
        for line in event.decode().split("\n"):
            if line.startswith(":"):
                self.comments.append((time.monotonic(), line.encode()))
            else:
                name, _, value = line.partition(": ")
                assert name not in fields, event
                fields[name] = value
        if "retry" in fields:
            self.retries.append(int(fields["retry"]))
        if "event" in fields:
            self._take_event(fields["event"], fields.get("id"), orjson.loads(fields["data"]))

    def _take_event(self, name: str, event_id: str | None, data: dict[str, Any]) -> None:
        check_event(name, data)
        assert (event_id is not None) == (name in ("token", "done", "error")), (name, event_id)
        if event_id is not None:
            seq = int(event_id)
            assert seq == data["seq"] > self.cursor, f"{name} {seq} after {self.cursor}"
            self.cursor = seq
        if name == "token":
            self.text += data["text"]
            self.token_times.append(time.monotonic())
        elif name in ("done", "error"):
            self.end = (name, data)
        elif name == "session":
            self.openings.append(data)
        else:
            self.controls.append((name, data))


class Door:
    """One client of the sessions API, with its key.

    async with Door(key) as door:
        story = await door.create(gateway.url, question("Hello", 30))
        await door.read(gateway.url, story)
    """

    def __init__(self, key: str) -> None:
        self.key = key

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers={"authorization": f"Bearer {self.key}"},
            timeout=aiohttp.ClientTimeout(total=None, connect=2, sock_read=20),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.http.close()

    async def create(self, url: str, messages: list[dict[str, str]], **parameters: Any) -> Story:
        body = {"model": "sim-model", "messages": messages, "temperature": 0, **parameters}
        status, answer = await self.call("POST", f"{url}/v1/sessions", body)
        assert status == 201, answer
        return Story(messages, answer["id"])

    async def read(
        self,
        url: str,
        story: Story,
        *,
        leave_at: int | None = None,
        leave_when: Callable[[], bool] = lambda: False,
        patience: Callable[[], float] = lambda: 0.0,
        query: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """One connection from the story's cursor; whether the story has its end.

        Left at token ``leave_at`` by cutting the connection. ``patience``: seconds to wait before
        more is read. Raises what breaks the connection.
        """
        story.connections += 1
        sent = {"last-event-id": str(story.cursor), **(headers or {})}
        async with self.http.get(
            f"{url}/v1/sessions/{story.session_id}/events{query}", headers=sent
        ) as response:
            if response.status == 204:
                assert story.end is not None, "204, but the end never came"
                return True
            if response.status != 200:
                raise aiohttp.ClientError(f"{response.status} {await response.text()}")
            buffer = b""
            async for data in response.content.iter_any():
                *events, buffer = (buffer + data).split(b"\n\n")
                for event in events:
                    story.take(event)
                    if leave_when() or (leave_at is not None and story.cursor >= leave_at):
                        response.close()
                        return story.end is not None
                if pause := patience():
                    await asyncio.sleep(pause)
            assert not buffer, f"the stream ends inside an event: {buffer!r}"
        return story.end is not None

    async def read_on(self, urls: Sequence[str], story: Story, seconds: float = 30.0) -> Story:
        """Read to the end over as many connections as it takes, at one URL after the other."""
        async with asyncio.timeout(seconds):
            turn = 0
            while True:
                try:
                    if await self.read(urls[turn % len(urls)], story):
                        return story
                except TROUBLE:
                    turn += 1
                await asyncio.sleep(0.05)

    async def call(self, method: str, url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """A plain request: status and JSON."""
        async with self.http.request(method, url, json=body) as response:
            return response.status, await response.json()

    async def stop(self, url: str, story: Story) -> tuple[int, dict[str, Any]]:
        return await self.call("POST", f"{url}/v1/sessions/{story.session_id}/stop")

    async def ack(self, url: str, story: Story, seq: int) -> tuple[int, dict[str, Any]]:
        return await self.call("POST", f"{url}/v1/sessions/{story.session_id}/ack", {"seq": seq})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A session as PostgreSQL has it in the end."""

    state: str
    cause: str
    evidence: str
    delivered_seq: int
    durable_seq: int
    completion_tokens: int
    log: StoredLog


def outcome(stack: Stack, story: Story) -> Outcome:
    """Asserts that the stored log is contiguous, agrees with its digests and with the reader."""
    row = stack.sql(
        "SELECT state, cause, CASE WHEN delivered_seq = 0 THEN 'none' WHEN acked_seq >= delivered_seq THEN 'ack'"
        " WHEN cursor_seq >= delivered_seq THEN 'cursor' ELSE 'socket' END, delivered_seq, durable_seq, completion_tokens"
        " FROM streaming_streamsession s JOIN session_fence f ON f.session_id = s.id WHERE s.id = %s",
        story.session_id,
    )[0]
    log = stored_log(stack, story.session_id)
    tokens = min(story.cursor, len(log.ids))
    assert story.text == log.between(0, tokens), "the reader has another text than the log"
    assert story.answer.text.startswith(log.text), "the log is no beginning of the answer"
    return Outcome(*row, log=log)


def state_of(stack: Stack, story: Story) -> tuple[str, str]:
    """state, cause"""
    return stack.sql(
        "SELECT state, cause FROM streaming_streamsession WHERE id = %s", story.session_id
    )[0]
