"""The bytes of an OpenAI answer: chat completion chunks, and whole completions."""

from __future__ import annotations

from typing import Any

import orjson

from streaming.runtime.live import LiveSession

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Builds the events of one streamed answer.

    What does not change from chunk to chunk is serialised once. Events carry ``id: <seq>``, the
    last token in them; the terminal record's seq comes with ``[DONE]``, the last event of all.
    """

    __slots__ = ("_after", "_before", "_head", "_usage_null")

    def __init__(self, session: LiveSession) -> None:
        head = {
            "id": completion_id(session),
            "object": "chat.completion.chunk",
            "created": session.created,
            "model": session.request.model,
            "system_fingerprint": None,
            "service_tier": "default",
        }
        self._head = orjson.dumps(head)[:-1]
        self._usage_null = b',"usage":null' if session.request.include_usage else b""
        self._before = b"\ndata: " + self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._after = b'},"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"

    def role(self) -> bytes:
        """The first chunk: who speaks."""
        return (
            b"data: "
            + self._head
            + b',"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},'
            b'"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        )

    def content(self, seq: int, text: str) -> bytes:
        """Tokens up to ``seq``."""
        return b"id: %d" % seq + self._before + orjson.dumps(text) + self._after

    def end(self, seq: int, finish_reason: str, usage: dict[str, Any] | None) -> bytes:
        """The finish, the usage if it was asked for, and ``[DONE]``."""
        finish = (
            b"data: "
            + self._head
            + b',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":'
            + orjson.dumps(finish_reason)
            + b"}]"
            + self._usage_null
            + b"}\n\n"
        )
        tail = (
            b""
            if usage is None
            else (
                b"data: " + self._head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"
            )
        )
        return finish + tail + b"id: %d\n" % seq + DONE


def completion_id(session: LiveSession) -> str:
    return f"chatcmpl-{session.id.hex}"


def usage_of(session: LiveSession, completion_tokens: int) -> dict[str, Any]:
    """The usage of the logical answer, however many attempts it took."""
    prompt = session.prompt_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": session.cached_prompt_tokens or 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def whole_completion(
    session: LiveSession, text: str, finish_reason: str, usage: dict[str, Any]
) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return {
        "id": completion_id(session),
        "object": "chat.completion",
        "created": session.created,
        "model": session.request.model,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": usage,
        "service_tier": "default",
        "system_fingerprint": None,
    }
