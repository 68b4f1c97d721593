"""A reader of streamed answers that keeps everything it saw, also when the stream breaks off."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
import orjson

from tests.engine_simulator.model import Answer, expected_answer


def question(text: str, tokens: int, alphabet: str = "mixed") -> list[dict[str, str]]:
    """A conversation whose answer has ``tokens`` tokens."""
    return [{"role": "user", "content": f"{text} [[tokens={tokens}]][[alphabet={alphabet}]]"}]


@dataclass(slots=True)
class Seen:
    """What one reader got. Times are of ``time.monotonic``."""

    messages: list[dict[str, str]]
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: list[tuple[int, str]] = field(default_factory=list)
    """(``id:``, text) of each content event."""
    token_times: list[float] = field(default_factory=list)
    comments: list[tuple[float, bytes]] = field(default_factory=list)
    head_at: float = 0.0
    asked_at: float = 0.0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    broken: str = ""
    """Why the connection ended, if not as HTTP wants it."""

    @property
    def session_id(self) -> str:
        return self.headers.get("x-session-id", "")

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.tokens)

    @property
    def answer(self) -> Answer:
        """The answer without any fault."""
        return expected_answer(self.messages)

    @property
    def is_whole(self) -> bool:
        """Whether it is the answer without any fault, to its end, each token once."""
        return (
            self.done
            and self.error is None
            and not self.broken
            and self.text == self.answer.text
            and self.finish_reason == self.answer.finish_reason
            and is_increasing([seq for seq, _ in self.tokens])
        )

    @property
    def trouble(self) -> str:
        """What to say when it is not whole."""
        return f"{self.status} {self.error or self.broken} {len(self.tokens)} events, {self.text[-40:]!r}"

    def take(self, event: bytes) -> None:
        """One event or comment, without its blank line."""
        now = time.monotonic()
        if event.startswith(b":"):
            self.comments.append((now, event))
            return
        seq = 0
        for line in event.split(b"\n"):
            if line.startswith(b"id: "):
                seq = int(line[4:])
            elif line == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: "):
                self._take_chunk(orjson.loads(line[6:]), seq, now)

    def _take_chunk(self, chunk: dict[str, Any], seq: int, now: float) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            if choice["delta"].get("content"):
                self.tokens.append((seq, choice["delta"]["content"]))
                self.token_times.append(now)
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def is_increasing(values: list[int]) -> bool:
    return all(a < b for a, b in pairwise(values))


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return when ``condition`` holds; it is looked at every 20 ms. Raises ``TimeoutError``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what it looks at is in other processes
            await asyncio.sleep(0.02)


class Readers:
    """Readers of one gateway, each on its own connection.

    async with Readers(gateway.url, key) as readers:
        seen = await readers.ask(question("Hello", 30))
    """

    def __init__(self, url: str, key: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._tls = tls
        self._headers = {"authorization": f"Bearer {key}"}

    async def __aenter__(self) -> Readers:
        connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls or True)
        self.client = aiohttp.ClientSession(
            self._url,
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.client.close()

    async def ask(
        self,
        messages: list[dict[str, str]],
        *,
        seen: Seen | None = None,
        leave_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> Seen:
        """Read to the end, or until ``leave_after`` events with text; what was seen."""
        seen = seen or Seen(messages)
        body = {
            "model": "sim-model", "messages": messages, "stream": True, "temperature": 0, **parameters,
        }  # fmt: skip
        seen.asked_at = time.monotonic()
        try:
            async with self.client.post(
                "/v1/chat/completions", json=body, headers=headers
            ) as response:
                seen.status, seen.headers = response.status, response.headers
                seen.head_at = time.monotonic()
                if response.status != 200:
                    seen.error = (await response.json())["error"]
                    return seen
                buffer = b""
                async for data in response.content.iter_any():
                    *events, buffer = (buffer + data).split(b"\n\n")
                    for event in events:
                        seen.take(event)
                    if leave_after is not None and len(seen.tokens) >= leave_after:
                        response.close()
                        return seen
        except (aiohttp.ClientError, OSError) as exc:
            seen.broken = repr(exc)
        return seen

    async def ask_many(
        self, count: int, text: str, tokens: int, alphabet: str = "mixed", **parameters: Any
    ) -> list[Seen]:
        """``count`` readers at once, each with a question of its own."""
        return await asyncio.gather(
            *(
                self.ask(question(f"{text} {number}", tokens, alphabet), **parameters)
                for number in range(count)
            )
        )
