"""A client of the gateway that reads its streams by itself, sharing no code with the product."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Reply:
    """What a client got. ``seqs`` are the ``id`` fields, in order; ``raw`` is every byte."""

    status: int
    session_id: str = ""
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    seqs: list[int] = field(default_factory=list)
    controls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    is_done: bool = False
    raw: bytes = b""

    @property
    def counted(self) -> tuple[int, int]:
        """Prompt and completion tokens as the client is told."""
        assert self.usage is not None, self
        return self.usage["prompt_tokens"], self.usage["completion_tokens"]


def ask(
    url: str,
    key: str,
    prompt: str | list[dict[str, str]],
    *,
    model: str = "sim-model",
    headers: Mapping[str, str] | None = None,
    on_text: Callable[[Reply], None] | None = None,
    **parameters: Any,
) -> Reply:
    """Ask for a streamed answer and read it to its end; ``on_text`` sees it grow."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    body = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **parameters,
    }
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=body, headers=sent, timeout=30
    ) as response:
        reply = Reply(response.status_code, response.headers.get("x-session-id", ""))
        if response.status_code != 200:
            reply.error = json.loads(response.read())["error"]
            return reply
        buffer = b""
        for data in response.iter_raw():
            reply.raw += data
            *events, buffer = (buffer + data).split(b"\n\n")
            for event in events:
                _read_event(reply, event.decode())
            if on_text is not None:
                on_text(reply)
        assert not buffer, f"the stream ends inside an event: {buffer!r}"
    return reply


def _read_event(reply: Reply, event: str) -> None:
    fields: dict[str, str] = {}
    for line in event.split("\n"):
        if not line.startswith(":"):
            name, _, value = line.partition(": ")
            assert name not in fields, event
            fields[name] = value
    if "id" in fields:
        reply.seqs.append(int(fields["id"]))
    data = fields.get("data")
    if data is None:
        return
    if data == "[DONE]":
        reply.is_done = True
        return
    document = json.loads(data)
    if name := fields.get("event"):
        reply.controls.append((name, document))
    elif "error" in document:
        reply.error = document["error"]
    else:
        reply.usage = document.get("usage") or reply.usage
        for choice in document["choices"]:
            reply.text += choice["delta"].get("content") or ""
            reply.finish_reason = choice["finish_reason"] or reply.finish_reason
