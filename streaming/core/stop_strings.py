"""Stop strings, matched over the whole answer so that they work across seams."""

from __future__ import annotations

from collections.abc import Sequence

from streaming.core.chunks import Token


class StopMatcher:
    """Lets tokens pass that cannot be part of a stop string; keeps back those that still may.

    The text it keeps back is not visible, not in the log, and lost with the attempt, which is
    right: the next attempt produces it again.
    """

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held: list[Token] = []

    @property
    def held_tokens(self) -> int:
        return len(self._held)

    def feed(self, tokens: list[Token]) -> tuple[list[Token], bool]:
        """The tokens whose text is out now, and whether a stop string has ended the answer.

        At the end of the answer the text from the stop string on is gone, but its tokens are there
        (without text): the engine produced them, and usage counts them.
        """
        if not self._stops:
            return tokens, False
        self._held += tokens
        text = "".join(token.text for token in self._held)
        cut = self._first_stop(text)
        if cut is not None:
            return self._release_cut(*cut), True
        return self._release(len(text) - self._possible_start(text)), False

    def flush(self) -> list[Token]:
        """What is still held back; for when the answer has ended."""
        tokens, self._held = self._held, []
        return tokens

    def _first_stop(self, text: str) -> tuple[int, int] | None:
        """Where the stop string that is complete first begins and ends."""
        found = [
            (end, start)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
            for end in [start + len(stop)]
        ]
        if not found:
            return None
        end, start = min(found)
        return start, end

    def _possible_start(self, text: str) -> int:
        """The length of the longest end of ``text`` that begins a stop string."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(min(len(stop) - 1, len(text)), 0, -1)
                if text.endswith(stop[:size])
            ),
            default=0,
        )

    def _release(self, safe: int) -> list[Token]:
        """Let go of the tokens that end within the first ``safe`` characters.

        A token without text is the beginning of a character: it goes with the one that ends it,
        or the log would end inside a character.
        """
        position = clean = 0
        for count, token in enumerate(self._held, 1):
            position += len(token.text)
            if position > safe:
                break
            if token.text:
                clean = count
        released, self._held = self._held[:clean], self._held[clean:]
        return released

    def _release_cut(self, start: int, end: int) -> list[Token]:
        """The tokens up to the one that completes the stop string, cut off where it begins."""
        released = []
        position = 0
        for token in self.flush():
            if position >= end:
                break
            released.append(Token(token.id, token.text[: max(0, start - position)]))
            position += len(token.text)
        return released
