"""One short real answer: followed, broken off, resumed, and read again by long polling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gateway_project.doctor.finding import Finding, failure, left_out, ok, warning
from gateway_project.doctor.public import Public, session

TOKENS = 16
SECONDS = 60.0
QUESTION = "Count from one to twenty in words."
DOC = "docs/protocol.md"


@dataclass(slots=True)
class Reading:
    """``events``: id and text of each; ``end``: the terminal event, once it has come."""

    events: list[tuple[int, str]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.events)

    @property
    def cursor(self) -> int:
        return self.events[-1][0] if self.events else 0

    def take(self, event: dict[str, Any]) -> None:
        """The data of a ``token``, ``done`` or ``error`` event."""
        if "text" in event:
            self.events.append((event["seq"], event["text"]))
        elif "state" in event or "error" in event:
            self.end = event


async def look(public: Public) -> list[Finding]:
    """Costs at most ``TOKENS`` tokens of the key's tenant."""
    if not public.asks_engine:
        return [left_out("answer", "--no-answer")]
    try:
        async with asyncio.timeout(SECONDS), session(public) as client:
            return [finding async for finding in _ask(public, client)]
    except TimeoutError:
        return [
            failure("answer", f"not read within {SECONDS:g} s", "See the findings about nodes.")
        ]
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as exc:
        words = f"{type(exc).__name__}: {exc}".rstrip(": ")
        return [
            failure(
                "answer",
                f"could not be read: {words}",
                "See the findings about the stream and nodes.",
            )
        ]


async def _ask(public: Public, client: aiohttp.ClientSession) -> Any:
    async with client.get(f"{public.url}/v1/models", headers=public.headers) as response:
        models = [one["id"] for one in (await response.json())["data"]]
    if not models:
        yield failure(
            "answer",
            "no model can be asked for",
            "See the findings about nodes.",
            "docs/engines.md",
        )
        return
    request = {
        "model": models[0],
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": TOKENS,
    }
    async with client.post(
        f"{public.url}/v1/sessions", json=request, headers=public.headers
    ) as response:
        body = await response.json()
        if response.status != 201:
            words = body.get("error", {}).get("message", "")
            yield failure(
                "answer",
                f"HTTP {response.status}: {words}",
                "See the limits of the key, and nodes.",
            )
            return
    events = f"{public.url}{body['events_url']}"
    broken, rest = Reading(), Reading()
    await _follow(client, public, events, broken, first_only=True)
    await _follow(client, public, events, rest, cursor=broken.cursor)
    polled = await _polled(client, public, events)
    for finding in judge(models[0], broken, rest, polled):
        yield finding


async def _follow(
    client: aiohttp.ClientSession,
    public: Public,
    url: str,
    reading: Reading,
    *,
    cursor: int = 0,
    first_only: bool = False,
) -> None:
    headers = {**public.headers, "last-event-id": str(cursor), "accept": "text/event-stream"}
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with client.get(url, headers=headers, timeout=timeout) as response:
        if response.status == 204:
            return
        async for line in response.content:
            if line.startswith(b"data: "):
                reading.take(json.loads(line[6:]))
                if reading.end or (first_only and reading.events):
                    return


async def _polled(client: aiohttp.ClientSession, public: Public, url: str) -> Reading:
    """The whole answer once more, poll by poll."""
    reading, cursor = Reading(), 0
    while reading.end is None:
        async with client.get(
            url, params={"wait": "5", "last_id": str(cursor)}, headers=public.headers
        ) as response:
            if response.status != 200:
                break
            told = await response.json()
        for event in told["events"]:
            reading.take(event["data"])
        cursor = told["cursor"]
        if told["ended"]:
            break
    return reading


def judge(model: str, broken: Reading, rest: Reading, polled: Reading) -> Iterator[Finding]:
    """``broken``: up to where it was left. ``rest``: from there. ``polled``: all of it again."""
    end = rest.end or broken.end or polled.end
    if end is None or "error" in end:
        words = (end or {}).get("error", {}).get("message", "it did not end")
        yield failure(
            "answer", f"of {model}: {words}", "See the findings about nodes.", "docs/engines.md"
        )
        return
    seqs = [seq for seq, _ in (*broken.events, *rest.events)]
    yield ok("answer", f"{model} answers: {seqs[-1] if seqs else 0} tokens")
    if seqs != sorted(set(seqs)) or broken.text + rest.text != polled.text:
        yield failure(
            "resume",
            "an answer that was broken off and resumed is not what long polling gives",
            "Something in between caches or repeats: no caching of /v1/. Else report it.",
            DOC,
        )
    else:
        yield ok(
            "resume", f"broken off at token {broken.cursor} and resumed: the same, byte by byte"
        )
    yield (
        ok("long polling", f"{len(polled.events)} events")
        if polled.end
        else warning(
            "long polling",
            "does not come to the end",
            "No caching of /v1/, no limit below 25 s.",
            DOC,
        )
    )
