"""A digest of a token log that does not depend on where the log was cut into checkpoints."""

from __future__ import annotations

import hashlib


class RunningDigest:
    """BLAKE2b over all ids and, apart from them, over all text; 16 bytes after any token.

    Two logs with the same digest hold the same tokens and the same text, however flushed.
    """

    __slots__ = ("_ids", "_text")

    def __init__(self) -> None:
        self._ids = hashlib.blake2b(digest_size=16)
        self._text = hashlib.blake2b(digest_size=16)

    def update(self, token_ids: bytes, text: bytes) -> None:
        """Go on by tokens: their ids as little-endian int32, their text as UTF-8."""
        self._ids.update(token_ids)
        self._text.update(text)

    def digest(self) -> bytes:
        return hashlib.blake2b(self._ids.digest() + self._text.digest(), digest_size=16).digest()

    def copy(self) -> RunningDigest:
        twin = RunningDigest.__new__(RunningDigest)
        twin._ids = self._ids.copy()
        twin._text = self._text.copy()
        return twin
