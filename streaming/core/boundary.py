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
        ids = chunk.token_ids
        if not chunk.text and chunk.finish_reason is None:
            self._waiting += ids
            return []
        if self._waiting:
            ids = self._waiting + ids
            self._waiting = []
        if len(ids) == 1:
            return [Token(ids[0], chunk.text)]
        if not chunk.text:
            return [Token(token_id, "") for token_id in ids]
        # Which of them a part of the text belongs to only the engine knows.
        return [*(Token(token_id, "") for token_id in ids[:-1]), Token(ids[-1], chunk.text)]
