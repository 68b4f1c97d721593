"""The exact shape of llama.cpp's events, as measured on a real server."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from typing import Any

from .engine import Engine, ReplyFacts
from .model import Piece
from .vocabulary import spelt_bytes


def _dumps(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def error_document(code: int, message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Return llama.cpp's error object."""
    return {"error": {"code": code, "message": message, "type": kind}}


class CompletionReply:
    """Words an answer as `/completion` does.

    An event carries the id of its last token only; while a character is unfinished there is no
    event at all, and nothing but `tokens_predicted` tells how many ids are missing.
    """

    headers: Mapping[str, str] = {"Server": "llama.cpp", "X-Accel-Buffering": "no"}
    sends_headers_first = False
    closes = True
    keep_alive = b":\n\n"

    def __init__(self, engine: Engine, facts: ReplyFacts, body: dict[str, Any]) -> None:
        self._generation = facts.generation
        self._cached = facts.cached_tokens
        self._model = facts.model
        self._shows_ids = bool(body.get("return_tokens"))
        self._body = body
        self._context = engine.options.max_model_len
        self._evaluated = len(facts.generation.prompt_ids)
        self._after = f',"tokens_evaluated":{self._evaluated}}}\n\n'
        self._began = time.monotonic()

    def opening(self) -> bytes:
        """Return nothing: the native endpoint has no role chunk."""
        return b""

    def event(self, piece: Piece) -> bytes:
        """Return a token's event, or nothing inside a character."""
        if piece.is_held:
            return b""
        return (
            f'data: {{"index":0,"content":{piece.json_text},"tokens":[{piece.token_id}],"stop":false,'
            f'"id_slot":-1,"tokens_predicted":{self._generation.produced}{self._after}'
        ).encode()

    def ending(self, piece: Piece) -> bytes:
        """Return the last token's event and the closing one; the end token has an event too."""
        return self.event(piece) + f"data: {_dumps(self._summary('', []))}\n\n".encode()

    def _summary(self, content: str, tokens: list[int]) -> dict[str, Any]:
        generation = self._generation
        produced = generation.produced
        is_word = isinstance(generation.stop_reason, str)
        stop_type = "limit" if generation.finish_reason == "length" else "eos"
        milliseconds = round((time.monotonic() - self._began) * 1e3, 3)
        sampling = generation.sampling
        return {
            "index": 0,
            "content": content,
            "tokens": tokens,
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": produced,
            "tokens_evaluated": self._evaluated,
            "generation_settings": {
                "seed": sampling.seed,
                "temperature": sampling.temperature,
                "stop": list(sampling.stop),
                "n_predict": self._body.get("n_predict", -1),
                "ignore_eos": sampling.ignore_eos,
                "stream": bool(self._body.get("stream")),
            },
            "prompt": spelt_bytes(generation.prompt_ids).decode("utf-8", "replace"),
            "has_new_line": False,
            "truncated": self._evaluated + produced >= self._context,
            "stop_type": "word" if is_word else stop_type,
            "stopping_word": generation.stop_reason if is_word else "",
            "tokens_cached": self._evaluated + produced - 1,
            "timings": {
                "cache_n": self._cached,
                "prompt_n": self._evaluated - self._cached,
                "predicted_n": produced,
                "predicted_ms": milliseconds,
            },
        }

    def error(self, code: int, message: str) -> bytes:
        """Return an error in the stream; no `[DONE]` follows."""
        kind = "server_error" if code >= 500 else "invalid_request_error"
        return f"data: {_dumps(error_document(code, message, kind))}\n\n".encode()

    def aborted(self) -> bytes:
        """Return a cancelled task's error: llama.cpp has no finish for it."""
        return self.error(500, "task cancelled")

    def document(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer, here with every id; a cut character becomes U+FFFD."""
        text = "".join(piece.text for piece in pieces)
        if pieces and pieces[-1].is_held:
            text += "\ufffd"
        ids = [piece.token_id for piece in pieces] if self._shows_ids else []
        return self._summary(text, ids)


class ChatReply(CompletionReply):
    """Words an answer as `/v1/chat/completions` does; token ids are nowhere."""

    def __init__(self, engine: Engine, facts: ReplyFacts, body: dict[str, Any]) -> None:
        super().__init__(engine, facts, body)
        self._shows_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._common = {
            "created": int(time.time()),
            "id": f"chatcmpl-{random.getrandbits(128):032x}",
            "model": facts.model,
            "system_fingerprint": "b0-unknown",
            "object": "chat.completion.chunk",
        }

    def _chunk(self, delta: dict[str, Any], finish: str | None) -> bytes:
        choices = [{"finish_reason": finish, "index": 0, "delta": delta}]
        text = _dumps({"choices": choices, **self._common})
        return f"data: {text}\n\n".encode("utf-8", "backslashreplace")

    def opening(self) -> bytes:
        """Return the role chunk."""
        return self._chunk({"role": "assistant", "content": None}, None)

    def event(self, piece: Piece) -> bytes:
        """Return a chunk for visible text only."""
        return self._chunk({"content": piece.text}, None) if piece.text else b""

    def ending(self, piece: Piece) -> bytes:
        """Return the finish, the usage if asked for, and `[DONE]`."""
        last = self.event(piece) + self._chunk({}, self._generation.finish_reason)
        if self._shows_usage:
            usage = {"choices": [], **self._common, "usage": self._usage()}
            last += f"data: {_dumps(usage)}\n\n".encode()
        return last + b"data: [DONE]\n\n"

    def _usage(self) -> dict[str, Any]:
        produced = self._generation.produced
        return {
            "completion_tokens": produced,
            "prompt_tokens": self._evaluated,
            "total_tokens": self._evaluated + produced,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def document(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer."""
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces)}
        finish = self._generation.finish_reason
        choices = [{"finish_reason": finish, "index": 0, "message": message}]
        whole = {**self._common, "object": "chat.completion", "usage": self._usage()}
        return {"choices": choices, **whole}
