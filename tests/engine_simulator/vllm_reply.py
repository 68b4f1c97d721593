"""The exact shape of vLLM's events and documents (0.32)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from .engine import ReplyFacts
from .model import Piece

FINGERPRINT = "vllm-0.32.0-51a1dead"
_DONE = b"data: [DONE]\n\n"
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


def dumps(document: object) -> str:
    """Write compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def error_document(code: int, message: str, name: str | None = None) -> dict[str, Any]:
    """Return vLLM's error object."""
    kind = _TYPES.get(code, "ServiceUnavailableError")
    return {"error": {"message": message, "type": kind, "param": None, "code": name or code}}


class VllmReply:
    """Words an answer as `/v1/completions` or, with `is_chat`, as `/v1/chat/completions` does."""

    headers: Mapping[str, str] = {}
    sends_headers_first = True
    closes = False
    keep_alive = b": keep-alive\n\n"

    def __init__(
        self, facts: ReplyFacts, body: dict[str, Any], reply_id: str, *, is_chat: bool
    ) -> None:
        self._generation = facts.generation
        self._cached = facts.cached_tokens
        self._is_chat = is_chat
        self._shows_ids = bool(body.get("return_token_ids"))
        options = body.get("stream_options") or {}
        self._shows_usage = bool(options.get("include_usage"))
        self._shows_usage_always = bool(options.get("continuous_usage_stats"))
        self._common = {
            "id": reply_id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": facts.model,
        }
        chunk = {**self._common, "object": "chat.completion.chunk"} if is_chat else self._common
        self._start = f"data: {dumps(chunk)[:-1]}"
        # Everything between the common part and the text never changes.
        self._before = f'{self._start},"choices":[{{"index":0,'
        self._before_text = self._before + ('"delta":{"content":' if is_chat else '"text":')
        self._ids_once = dumps(list(facts.echoed_ids)) if self._shows_ids else "null"

    def opening(self) -> bytes:
        """Return the role chunk of a chat."""
        if not self._is_chat:
            return b""
        usage = self._usage_part()
        ids = f',"prompt_token_ids":{self._ids_once},"prompt_text":null' if self._shows_ids else ""
        return (
            f'{self._before}"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            f'"finish_reason":null}}]'
            f"{ids}{usage}}}\n\n"
        ).encode()

    def event(self, piece: Piece) -> bytes:
        """Return a token's chunk: always one, with empty text inside a character."""
        return self._chunk(piece, "null", "null")

    def _chunk(self, piece: Piece, finish: str, stop_reason: str) -> bytes:
        ids = f"[{piece.token_id}]" if self._shows_ids else "null"
        if self._is_chat:
            tail = f',"token_ids":{ids}' if self._shows_ids else ""
            if finish != "null":
                tail = f',"stop_reason":{stop_reason}{tail}'
            after_text = f'}},"logprobs":null,"finish_reason":{finish}{tail}'
        else:
            after_text = (
                f',"logprobs":null,"finish_reason":{finish},"stop_reason":{stop_reason},'
                f'"prompt_token_ids":{self._ids_once},"token_ids":{ids}'
            )
            self._ids_once = "null"
        usage = self._usage_part()
        return f"{self._before_text}{piece.json_text}{after_text}}}]{usage}}}\n\n".encode()

    def ending(self, piece: Piece) -> bytes:
        """Return the finishing chunk, the usage chunk if asked for, and `[DONE]`."""
        finish = dumps(self._generation.finish_reason)
        last = self._chunk(piece, finish, dumps(self._generation.stop_reason))
        return last + self._usage_chunk() + _DONE

    def _usage(self) -> dict[str, Any]:
        prompt, produced = len(self._generation.prompt_ids), self._generation.produced
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + produced,
            "completion_tokens": produced,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def _usage_part(self) -> str:
        return f',"usage":{dumps(self._usage())}' if self._shows_usage_always else ""

    def _usage_chunk(self) -> bytes:
        if not self._shows_usage:
            return b""
        usage = f'"choices":[],"usage":{dumps(self._usage())}'
        return f'{self._start},{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()

    def error(self, code: int, message: str) -> bytes:
        """Return an error in the stream, and the `[DONE]` that vLLM sends all the same."""
        return f"data: {dumps(error_document(code, message))}\n\n".encode() + _DONE

    def aborted(self) -> bytes:
        """Return the end of a request aborted in the engine: it looks almost like a finish."""
        nothing = Piece(0, b"", "", '""')
        chunk = self._chunk(nothing, '"abort"', "null").replace(
            b'"token_ids":[0]', b'"token_ids":[]'
        )
        return chunk + self._usage_chunk() + _DONE

    def document(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer."""
        text = "".join(piece.text for piece in pieces)
        ids = [piece.token_id for piece in pieces] if self._shows_ids else None
        reason = self._generation.finish_reason
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": "abort" if reason == "aborted" else reason,
            "stop_reason": self._generation.stop_reason,
            "token_ids": ids,
        }
        echoed = json.loads(self._ids_once)
        whole = {**self._common, "usage": self._usage(), "system_fingerprint": FINGERPRINT}
        if self._is_chat:
            message = {"role": "assistant", "content": text}
            return {
                **whole,
                "choices": [{**choice, "message": message}],
                "prompt_token_ids": echoed,
            }
        return {**whole, "choices": [{**choice, "text": text, "prompt_token_ids": echoed}]}
