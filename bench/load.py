"""The load: many streams read by one cheap process of its own.

``bench.generator`` is that process. While it measures it counts patterns of bytes only; texts are
compared after the last stream has ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.engine_simulator.model import expected_answer

ROOT = Path(__file__).resolve().parent.parent
# One token is one event of the engine; its text is in a JSON string, where quotes are escaped.
ENGINE_TOKEN = b'"text":"'
# The gateway joins tokens that became durable together, and numbers its events by the last one.
GATEWAY_ID = re.compile(rb"\nid: (\d+)\n")
CONTENT = re.compile(rb'"(?:text|content)":("(?:[^"\\]|\\.)*")')
TAIL = 32  # bytes of the last read in which the beginning of a pattern may hide


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``starts`` of streams are ``1 / rate`` seconds apart. ``key`` empty: ``url`` is the engine."""

    url: str
    model: str
    key: str
    streams: int
    tokens: int
    rate: float
    label: str
    timeout: float = 120.0
    websocket: bool = False


@dataclass(slots=True, kw_only=True)
class StreamSeen:
    """What one stream saw. Times are those of the wall clock, in seconds."""

    sent: float = 0.0
    session: str = ""
    arrivals: list[float] = field(default_factory=list)
    """The time of each read that brought tokens."""
    counts: list[int] = field(default_factory=list)
    """Tokens seen by then."""
    silence: float = 0.0
    """The longest time between two reads, keep-alives among them, in seconds."""
    ended: bool = False
    whole: bool = False
    """All tokens came, and their text is the engine's answer."""
    fault: str = ""


@dataclass(slots=True, kw_only=True)
class LoadSeen:
    streams: list[StreamSeen]
    cpu_seconds: float


def messages_of(job: Job, index: int) -> list[dict[str, str]]:
    words = f"{job.label} {index} [[alphabet=plain]] [[tokens={job.tokens + 10}]]"
    return [{"role": "user", "content": words}]


class Reader(asyncio.Protocol):
    """Asks for one stream and notes when how many tokens had come."""

    def __init__(self, job: Job, index: int, offset: float) -> None:
        self.seen = StreamSeen()
        self.done = asyncio.get_running_loop().create_future()
        self._job = job
        self._index = index
        self._offset = offset
        self._tail = b""
        self._tail_size = TAIL
        self._count = 0
        self._last_read = 0.0
        self._reads: list[bytes] = []
        self._take = self._take_gateway if job.key else self._take_engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        request = self._request()
        self.seen.sent = time.monotonic() + self._offset
        transport.write(request)

    def _request(self) -> bytes:
        job = self._job
        body = {
            "model": job.model,
            "messages": messages_of(job, self._index),
            "stream": True,
            "max_tokens": job.tokens,
            "temperature": 0,
        }
        path = "/v1/chat/completions"
        data = json.dumps(body).encode()
        if not job.key:
            # What the gateway asks for, too: a completion with ids.
            body["prompt"] = json.dumps(body.pop("messages"))
            path, data = "/v1/completions", json.dumps({**body, "return_token_ids": True}).encode()
        authorization = f"Authorization: Bearer {job.key}\r\n" if job.key else ""
        host = urlsplit(job.url).netloc
        return (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode() + data

    def data_received(self, data: bytes) -> None:
        now = time.monotonic() + self._offset
        self._reads.append(data)
        if self._last_read:
            self.seen.silence = max(self.seen.silence, now - self._last_read)
        self._last_read = now
        data = self._tail + data
        self._take(data, now)
        self._tail = data[-self._tail_size :]
        if b"data: [DONE]" in data:
            self.seen.ended = True
            self.transport.close()

    def _take_engine(self, data: bytes, now: float) -> None:
        # What the tail holds in full has been counted with the last read.
        found = data.count(ENGINE_TOKEN) - self._tail.count(ENGINE_TOKEN)
        if found:
            self._note(self._count + found, now)

    def _take_gateway(self, data: bytes, now: float) -> None:
        last = data.rfind(b"\nid: ")
        if last < 0 or (match := GATEWAY_ID.match(data, last)) is None:
            return
        seq = min(int(match[1]), self._job.tokens)  # the terminal record has a number too
        if seq > self._count:
            self._note(seq, now)

    def _note(self, count: int, now: float) -> None:
        self._count = count
        self.seen.arrivals.append(now)
        self.seen.counts.append(count)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def conclude(self) -> StreamSeen:
        """Once nothing is timed any more: read the head and compare the text."""
        data = b"".join(self._reads)
        if session := re.search(rb"(?i)x-session-id: (\S+)", data[:2000]):
            self.seen.session = session[1].decode()
        text = self._text(data)
        job = self._job
        complete = self.seen.ended and self._count == job.tokens
        if job.key:
            answer = expected_answer(messages_of(job, self._index), max_tokens=job.tokens)
            complete = complete and text == answer.text
        self.seen.whole = complete
        if not complete:
            self.seen.fault = f"{self._count} tokens, ended {self.seen.ended}: …{data[-200:]!r}"
        return self.seen

    def _text(self, data: bytes) -> str:
        """What all that came says."""
        return "".join(json.loads(found) for found in CONTENT.findall(_unchunked(data)))


def _unchunked(data: bytes) -> bytes:
    """The body of a chunked response; whatever is left when it ends early."""
    _, _, rest = data.partition(b"\r\n\r\n")
    body = []
    at = 0
    while (end := rest.find(b"\r\n", at)) >= 0:
        size = int(rest[at:end] or b"0", 16)
        if not size:
            break
        body.append(rest[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(body)


class Load:
    """The generator process of one job; ``result()`` waits for its end."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.generator"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if line != "STARTED\n":
            raise RuntimeError(f"the load generator did not start: {line!r}")

    def result(self) -> LoadSeen:
        output, _ = self._process.communicate()
        seen = json.loads(output)
        streams = [StreamSeen(**stream) for stream in seen["streams"]]
        return LoadSeen(streams=streams, cpu_seconds=seen["cpu_seconds"])
