"""How long a node may take to its first token before that is unusual."""

from __future__ import annotations

from streaming.core.pace import Pace

LONG_PROMPT = 256
"""Tokens from which reading a prompt (prefill) takes longer than all else before a first token."""
UNKNOWN_SECONDS, LEAST_SECONDS = 3.0, 1.0
"""Usual for a short prompt: until the node's own times are known, and at least, once they are."""
UNKNOWN_READING, LONGEST_UNKNOWN = 0.01, 10.0
"""Seconds a token, and at most in all, until the node has read a long prompt. A slow CPU needs 7 ms
a token."""
MARGIN = 2.0
FORGETTING = 0.98
"""What is left of the slowest reading after each that was faster: prompts that are cached cost
next to nothing, and say nothing of the next one that is not."""


class FirstToken:
    """One node's times to first token. Times are seconds, prompts are tokens."""

    __slots__ = ("_of_short", "_reading")

    def __init__(self) -> None:
        self._of_short = Pace()
        self._reading: float | None = None

    def __repr__(self) -> str:
        return f"<FirstToken {self._of_short!r}, {self._reading} s a token>"

    def note(self, seconds: float, prompt: int) -> None:
        """The first token has come ``seconds`` after the request."""
        if prompt < LONG_PROMPT:
            self._of_short.note(seconds)
        else:
            self._reading = max(seconds / prompt, (self._reading or 0.0) * FORGETTING)

    def reading(self, prompt: int) -> float:
        """What the node may need for reading a long prompt alone; 0 for a short one."""
        if prompt < LONG_PROMPT:
            return 0.0
        if self._reading is None:
            return min(prompt * UNKNOWN_READING, LONGEST_UNKNOWN)
        return MARGIN * self._reading * prompt

    def longest_usual(self, prompt: int, least: float = LEAST_SECONDS) -> float:
        """Waiting longer than this for the first token is worth a look; ``least``: for a short prompt."""
        short = self._of_short
        usual = short.longest_usual(least) if short.is_known else UNKNOWN_SECONDS
        return usual + self.reading(prompt)
