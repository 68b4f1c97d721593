"""The bytes of an OpenAI answer: chat completion chunks, and whole completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

import orjson

from streaming.core.chat import ChatRequest
from streaming.core.ids import created_at
from streaming.runtime.live import ControlEvent
from streaming.runtime.token_log import LogSlice

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Completion:
    """What every chunk of an answer says about it; the same for each replay."""

    session_id: UUID
    request: ChatRequest

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.session_id.hex}"

    @property
    def created(self) -> int:
        """Unix time in seconds."""
        return created_at(self.session_id)


class OpenAIWriter:
    """Builds the events of one streamed answer.

    What does not change from chunk to chunk is serialised once. Events carry ``id: <seq>``, the
    last token in them; the terminal record's seq comes with ``[DONE]``, the last event of all.
    """

    __slots__ = ("_after", "_before", "_head", "_include_usage", "_tell_controls", "_usage_null")
    protocol: ClassVar[str] = "openai"
    tells_errors: ClassVar[bool] = False

    def __init__(self, completion: Completion, *, tell_controls: bool = False) -> None:
        head = {
            "id": completion.id,
            "object": "chat.completion.chunk",
            "created": completion.created,
            "model": completion.request.model,
            "system_fingerprint": None,
            "service_tier": "default",
        }
        self._tell_controls = tell_controls
        self._include_usage = completion.request.include_usage
        self._head = orjson.dumps(head)[:-1]
        self._usage_null = b',"usage":null' if self._include_usage else b""
        self._before = b"\ndata: " + self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._after = b'},"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"

    def opening(self) -> bytes:
        """The first chunk: who speaks."""
        return (
            b"data: "
            + self._head
            + b',"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},'
            b'"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        )

    def tokens(self, seq: int, text: str) -> bytes:
        """Tokens up to ``seq``; nothing where they have no text."""
        if not text:
            return b""
        return b"id: %d" % seq + self._before + orjson.dumps(text) + self._after

    def end(self, piece: LogSlice) -> bytes:
        """The finish, the usage if it was asked for, and ``[DONE]``."""
        terminal = piece.terminal or {}
        if terminal.get("error"):
            return b""  # told by the consumer, as an error object
        finish = (
            b"data: "
            + self._head
            + b',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":'
            + orjson.dumps(terminal.get("finish_reason") or "stop")
            + b"}]"
            + self._usage_null
            + b"}\n\n"
        )
        usage = b""
        if self._include_usage:
            usage = orjson.dumps(usage_of(terminal, piece.last_seq - 1))
            usage = b"data: " + self._head + b',"choices":[],"usage":' + usage + b"}\n\n"
        return finish + usage + b"id: %d\n" % piece.last_seq + DONE

    def control(self, event: ControlEvent) -> bytes:
        """Only for clients that asked: an OpenAI SDK would take it for a chunk."""
        if not self._tell_controls:
            return b""
        name = event.name.encode()
        return b"event: unbroken.%s\ndata: %s\n\n" % (name, orjson.dumps(event.data))

    def quality(self, told: dict[str, Any]) -> bytes:
        """No client of this format asks for it."""
        return b""


def usage_of(terminal: dict[str, Any], completion_tokens: int) -> dict[str, Any]:
    """The usage of the logical answer, however many attempts it took."""
    prompt = terminal.get("prompt_tokens") or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": terminal.get("cached_prompt_tokens") or 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def whole_completion(completion: Completion, text: str, piece: LogSlice) -> dict[str, Any]:
    """The body of an answer that is not streamed; ``piece`` brought its terminal record."""
    terminal = piece.terminal or {}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": [],
    }
    return {
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": completion.request.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": terminal.get("finish_reason") or "stop",
            }
        ],
        "usage": usage_of(terminal, piece.last_seq - 1),
        "service_tier": "default",
        "system_fingerprint": None,
    }
