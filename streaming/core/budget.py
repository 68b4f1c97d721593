"""The token budget of an answer, carried over its attempts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """``max_tokens`` None: as much as the context holds. ``context`` None: unknown."""

    max_tokens: int | None
    min_tokens: int = 0

    def remaining(self, prompt_tokens: int, produced: int, context: int | None) -> int | None:
        """How many tokens the next attempt may produce; 0: the answer is full. None: no limit known.

        ``context`` is the target node's, in tokens.
        """
        limits = []
        if self.max_tokens is not None:
            limits.append(self.max_tokens - produced)
        if context is not None:
            limits.append(context - prompt_tokens - produced)
        return max(0, min(limits)) if limits else None

    def still_required(self, produced: int) -> int:
        """How many tokens the next attempt must produce before it may end."""
        return max(0, self.min_tokens - produced)
