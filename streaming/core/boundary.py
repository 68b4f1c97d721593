"""The clean boundary: a token enters the log only when its text is out and its id is known."""

from __future__ import annotations

from streaming.core.chunks import Token, TokenChunk


class CleanBoundary:
    """Joins ids with the text that an engine gives later.

    Engines emit text only at the end of a character, so where text comes out, all ids before it
    are accounted for. The ids without text wait here; they are lost with their attempt, and the
    next one produces them again, which keeps every prefix we continue from on whole characters.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[int] = []

    @property
    def waiting(self) -> int:
        """How many tokens have been produced and are not in the log yet."""
        return len(self._waiting)

    def feed(self, chunk: TokenChunk) -> list[Token]:
        """The tokens that this chunk completes. Their text belongs to the last of them."""
        ids: list[int] = []
        texts: list[str] = []
        self.join(chunk, ids, texts)
        return list(map(Token, ids, texts))

    def join(self, chunk: TokenChunk, ids: list[int], texts: list[str]) -> bool:
        """``feed``, with ids and texts added to lists; whether the chunk completes any."""
        new = chunk.token_ids
        if not chunk.text and chunk.finish_reason is None:
            self._waiting += new
            return False
        if self._waiting:
            new = self._waiting + new
            self._waiting = []
        if not new:
            assert not chunk.text, "text without a token"
            return False
        ids += new
        if len(new) > 1:
            # Which of them a part of the text belongs to only the engine knows.
            texts += [""] * (len(new) - 1)
        texts.append(chunk.text)
        return True
