"""The log of a session as PostgreSQL has it, checked while it is read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import orjson

from streaming.core.digest import RunningDigest
from tests.stack import Stack


@dataclass(frozen=True, slots=True)
class StoredLog:
    """``texts``: of token 1, 2, 3, …"""

    ids: list[int]
    texts: list[str]
    terminal: dict[str, Any] | None
    epochs: set[int]

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def between(self, after: int, upto: int) -> str:
        """The text of the tokens after ``after``, up to and including ``upto``."""
        return "".join(self.texts[after:upto])


def stored_log(stack: Stack, session_id: Any) -> StoredLog:
    """Read it. Asserts that it is contiguous, agrees with its fence and with its digests."""
    rows = stack.sql(
        "SELECT first_seq, last_seq, token_ids, text, text_ends, digest, terminal, c.epoch, durable_seq"
        " FROM session_fence f LEFT JOIN streaming_tokencheckpoint c USING (session_id)"
        " WHERE session_id = %s ORDER BY first_seq",
        session_id,
    )
    assert rows, "the session was never stored"
    return log_from_rows([row[:-1] for row in rows if row[0] is not None], rows[0][-1])


def log_from_rows(rows: list[tuple[Any, ...]], durable: int) -> StoredLog:
    ids: list[int] = []
    texts: list[str] = []
    terminal = None
    digest = RunningDigest()
    expected = 1
    for first, last, token_ids, text, ends, row_digest, row_terminal, _ in rows:
        assert terminal is None, "something follows the terminal record"
        assert first == expected, f"a row begins at {first}, not at {expected}"
        decoded, begin = bytes(text).decode(), 0
        for end in array("i", bytes(ends)):
            texts.append(decoded[begin:end])
            begin = end
        assert begin == len(decoded)
        ids += array("i", bytes(token_ids))
        digest.update(bytes(token_ids), bytes(text))
        assert bytes(row_digest) == digest.digest(), f"the digest at {last} is another"
        if row_terminal is not None:
            terminal = orjson.loads(bytes(row_terminal))
        expected = last + 1
        assert len(ids) == len(texts) == last - (terminal is not None)
    assert durable == expected - 1
    return StoredLog(ids, texts, terminal, {row[-1] for row in rows})
