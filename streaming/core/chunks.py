"""The shapes in which an answer travels: what engines give, and what the log holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

UNKNOWN_ID = -1
"""The id of a token whose engine did not tell it. A log that holds one cannot be continued by ids."""


class TokenChunk(NamedTuple):
    """What one engine event says: ``token_ids`` produced so far unseen, and the text now out.

    Text may lag ids: an engine holds back half of a character. ``finish_reason`` is None until the
    answer ends, then ``stop`` or ``length``.
    """

    token_ids: list[int]
    text: str
    finish_reason: str | None = None


class Token(NamedTuple):
    """One token of the log: its id and the visible text that belongs to it (maybe none)."""

    id: int
    text: str


@dataclass(slots=True)
class EngineUsage:
    """What an engine reports besides tokens; filled in as it becomes known."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. ``extra`` holds what an engine takes besides (``top_k``, ``min_p``, …)."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_penalties(self) -> bool:
        """Whether what has been generated counts against tokens that come."""
        return bool(self.presence_penalty or self.frequency_penalty)
