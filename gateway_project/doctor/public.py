"""What the public address is asked with."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from gateway_project.doctor.clocks import offset_of_server_time
from streaming.core.sse import EventTooLong, SSEParser

ANSWER_SECONDS = 10.0
SLACK_SECONDS = 20.0
"""So much longer than it should last a stream may take before it counts as forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """``url``: without a slash at its end. ``patience``: seconds for which silence is measured.

    ``origin``: a page's, whose access is to be tried. ``ca``: a file with the authority to believe
    besides the system's. ``asks_engine``: whether a short real answer may be asked for.
    """

    url: str
    key: str = field(default="", repr=False)
    origin: str = ""
    ca: str = ""
    patience: float = 35.0
    asks_engine: bool = True

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def is_local(self) -> bool:
        return self.host in ("localhost", "127.0.0.1", "::1")

    def tls(self) -> ssl.SSLContext:
        """A new context for connections there. Raises ``OSError`` (``ssl.SSLError``) for a bad ``ca``."""
        context = ssl.create_default_context()
        if self.ca:
            context.load_verify_locations(cafile=self.ca)
            # Authorities of one's own often leave out what newer Pythons insist on.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@dataclass(slots=True)
class Course:
    """A diagnostic stream as it arrived. Times are seconds since it was asked for.

    ``arrivals``: of each tick and the end, when the gateway sent it (since its beginning) and when it
    came. ``over``: when the response was over, whole or cut; None: it was given up, nothing came.
    """

    wanted: float
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    opened: dict[str, Any] | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = False
    stopped: bool = False
    """Whether the gateway ended it early because its process was being stopped."""
    over: float | None = None
    last: float = 0.0
    """When the last bytes came."""
    clock_offset: float | None = None
    """Seconds by which ``X-Server-Time`` is ahead of our clock."""
    trouble: str = ""

    def take(self, payload: bytes, at: float) -> None:
        """The data of one event. Raises ``ValueError`` for what is no JSON."""
        event = json.loads(payload)
        if "since" in event:
            self.arrivals.append((event["since"], at))
        if "complete" in event:
            self.whole, self.stopped = event["complete"], not event["complete"]
        if "instance" in event:
            self.opened = event


@asynccontextmanager
async def session(public: Public, *, keeps: bool = False) -> AsyncIterator[aiohttp.ClientSession]:
    """A client; each request on a connection of its own, unless it ``keeps`` them."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=not keeps, limit=0, ssl=public.tls()),
        timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
        headers={"accept-encoding": "identity"},
        auto_decompress=False,
    ) as client:
        yield client


async def follow(
    public: Public,
    seconds: float,
    interval: float,
    headers: Mapping[str, str] | None = None,
    *,
    only_open: bool = False,
) -> Course:
    """Read a diagnostic stream to its end, or (``only_open``) leave after its first event."""
    course = Course(seconds)
    began, asked_at = time.monotonic(), time.time()
    url = f"{public.url}/v1/diagnostics/stream?seconds={seconds:g}&interval={interval:g}"
    try:
        async with (
            asyncio.timeout(seconds + SLACK_SECONDS),
            session(public) as client,
            client.get(
                url,
                headers={**public.headers, **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=None),
                allow_redirects=False,
            ) as response,
        ):
            course.status = response.status
            course.headers = {name.lower(): value for name, value in response.headers.items()}
            course.clock_offset = offset_of_server_time(
                course.headers.get("x-server-time", ""), asked_at
            )
            if "content-encoding" not in course.headers and response.status == 200:
                await _read(response, course, began, only_open)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, EventTooLong) as exc:
        course.trouble = f"{type(exc).__name__}: {exc}".rstrip(": ")
        if isinstance(exc, TimeoutError):
            return course
    course.over = time.monotonic() - began
    return course


async def _read(
    response: aiohttp.ClientResponse, course: Course, began: float, only_open: bool
) -> None:
    parser = SSEParser()
    async for data in response.content.iter_any():
        at = course.last = time.monotonic() - began
        for payload in parser.feed(data):
            course.take(payload, at)
        if only_open and course.opened:
            return
