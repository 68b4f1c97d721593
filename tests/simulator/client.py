"""A raw HTTP client for the simulator's tests: it shows what the socket showed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engine_simulator.process import SimulatorProcess
from tests.engine_simulator.templates import TEMPLATES

PATHS = {"vllm": "/v1/completions", "llamacpp": "/completion"}


def question(text: str) -> list[dict[str, str]]:
    """Return a conversation of one user message."""
    return [{"role": "user", "content": text}]


def prompt_of(text: str, template: str = "chatml") -> list[int]:
    """Return that conversation's prompt as token ids."""
    return TEMPLATES[template].render_ids(question(text))


def completion_body(
    dialect: str, prompt: Sequence[int | str] | str, limit: int = 200, **more: Any
) -> dict[str, Any]:
    """Return a streaming, greedy completion request with ids in the answer."""
    names = {"vllm": ("max_tokens", "return_token_ids"), "llamacpp": ("n_predict", "return_tokens")}
    max_tokens, ids = names[dialect]
    return {
        "prompt": prompt,
        max_tokens: limit,
        "temperature": 0,
        "stream": True,
        ids: True,
        **more,
    }


@dataclass(slots=True)
class Seen:
    """What came over the socket until it ended."""

    status: int = 0
    headers: str = ""
    body: bytes = b""  # chunks joined
    ended: str = ""  # "chunk" (the ending one), "length", "fin", "reset" or "silence"
    half_chunk: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    saw_done: bool = False
    broken_events: int = 0
    rest: bytes = b""  # a line without an end

    @property
    def document(self) -> dict[str, Any]:
        """The body as JSON."""
        result: dict[str, Any] = json.loads(self.body)
        return result

    @property
    def ids(self) -> list[int]:
        """All token ids of the events, of either dialect."""
        found = []
        for event in self.events:
            for holder in [event, *event.get("choices", [])]:
                found += holder.get("token_ids") or holder.get("tokens") or []
        return found

    @property
    def text(self) -> str:
        """All text of the events, of either dialect."""
        parts = []
        for event in self.events:
            parts.append(event.get("content", ""))
            parts += [choice.get("text", "") for choice in event.get("choices", [])]
        return "".join(parts)

    @property
    def finish(self) -> str | None:
        """The finish reason, or llama.cpp's stop type."""
        for event in reversed(self.events):
            reason = event.get("stop_type") or next(
                (choice["finish_reason"] for choice in event.get("choices", [])), None
            )
            if reason:
                return str(reason)
        return None


@contextmanager
def posted(port: int, path: str, body: dict[str, Any], **headers: str) -> Iterator[socket.socket]:
    """Send a request and lend its socket."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        yield sock


def ask(
    node: SimulatorProcess,
    body: dict[str, Any],
    path: str = "",
    patience: float = 5,
    **headers: str,
) -> Seen:
    """Ask for a completion and read until the answer ends, however it does."""
    with posted(node.port, path or PATHS[node.dialect], body, **headers) as sock:
        return read_answer(sock, patience)


def read_answer(sock: socket.socket, patience: float = 5) -> Seen:
    """Read one response; `patience` is how long silence lasts before it counts as the end."""
    seen = Seen()
    sock.settimeout(patience)
    raw = b""
    while not seen.ended:
        try:
            data = sock.recv(1 << 16)
        except TimeoutError:
            seen.ended = "silence"
        except ConnectionResetError:
            seen.ended = "reset"
        else:
            raw += data
            if not data:
                seen.ended = "fin"
        _parse(raw, seen)
    _read_events(seen)
    return seen


def _parse(raw: bytes, seen: Seen) -> None:
    head, blank, rest = raw.partition(b"\r\n\r\n")
    if not blank:
        return
    seen.headers = head.decode("latin-1").lower()
    seen.status = int(head.split(b" ", 2)[1])
    if "content-length: " in seen.headers:
        length = int(seen.headers.split("content-length: ")[1].split("\r\n")[0])
        seen.body = rest
        seen.ended = "length" if len(rest) >= length else seen.ended
        return
    seen.body, seen.half_chunk = b"", False
    while rest:
        size, line_end, tail = rest.partition(b"\r\n")
        length = int(size, 16) if line_end else -1
        if length == 0:
            seen.ended = "chunk"
            return
        seen.half_chunk = length < 0 or len(tail) < length + 2
        if seen.half_chunk:
            seen.body += tail
            return
        seen.body += tail[:length]
        rest = tail[length + 2 :]


def _read_events(seen: Seen) -> None:
    *lines, seen.rest = seen.body.split(b"\n")
    for line in lines:
        if line == b"data: [DONE]":
            seen.saw_done = True
        elif line.startswith(b"data: "):
            try:
                seen.events.append(json.loads(line[6:]))
            except ValueError:
                seen.broken_events += 1
