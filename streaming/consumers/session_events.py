"""The wire format of a session's events (``docs/protocol.md``)."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from streaming.consumers.openai_format import usage_of
from streaming.errors import GatewayError
from streaming.runtime.adoption import StoredSession
from streaming.runtime.live import ControlEvent
from streaming.runtime.token_log import LogSlice

RETRY_MS = 1000


class SessionEventWriter:
    """``session`` first, then ``token``, ``attempt``, ``recovering``, ``recovered``, ``done`` or ``error``.

    Only tokens and the end carry an ``id``: it is what the reader resumes from. ``tells_quality``:
    the reader wants the events ``quality``.
    """

    protocol: ClassVar[str] = "sessions"
    tells_errors: ClassVar[bool] = True

    def __init__(self, opening: dict[str, Any], *, tells_quality: bool = False) -> None:
        self._opening = opening
        self._tells_quality = tells_quality

    def opening(self) -> bytes:
        return b"retry: %d\n" % RETRY_MS + _event("session", self._opening)

    def tokens(self, seq: int, text: str) -> bytes:
        return b"id: %d\n" % seq + _event("token", {"seq": seq, "text": text})

    def end(self, piece: LogSlice) -> bytes:
        terminal = piece.terminal or {}
        prefix = b"id: %d\n" % piece.last_seq
        if error := terminal.get("error"):
            return prefix + _event("error", {"seq": piece.last_seq, "error": error})
        return prefix + _event(
            "done",
            {
                "seq": piece.last_seq,
                "state": terminal.get("state"),
                "finish_reason": terminal.get("finish_reason") or None,
                "usage": usage_of(terminal, piece.last_seq - 1),
            },
        )

    def control(self, event: ControlEvent) -> bytes:
        return _event(event.name, event.data)

    def quality(self, told: dict[str, Any]) -> bytes:
        return _event("quality", told) if self._tells_quality else b""


def interrupted(error: GatewayError) -> bytes:
    """This connection cannot go on, though the session has not ended. No id: the cursor stands."""
    return _event("interrupted", error.as_openai())


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))


def session_body(stored: StoredSession) -> dict[str, Any]:
    """A session as its owner sees it."""
    return {
        "id": str(stored.id),
        "object": "session",
        "reference": stored.reference,
        "state": stored.state.value,
        "model": stored.model,
        "created_at": stored.created_at,
        "ended_at": stored.ended_at,
        "purged_at": stored.purged_at,
        "resume_until": stored.resume_until,
        "durable_seq": stored.durable_seq,
        "delivered_seq": stored.delivered_seq,
        "finish_reason": stored.finish_reason or None,
        "error_code": stored.error_code or None,
        "cause": stored.cause or None,
    }


def ended_usage(stored: StoredSession) -> dict[str, Any] | None:
    """What its end tells of usage; None before that. The terminal record is no token."""
    if not stored.ended:
        return None
    counted = {
        "prompt_tokens": stored.prompt_tokens,
        "cached_prompt_tokens": stored.cached_prompt_tokens,
    }
    return usage_of(counted, max(stored.durable_seq - 1, 0))
