"""What the gateway has written down about a session, read from PostgreSQL."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Sql = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class StoredAttempt:
    """A row of ``streaming_attempt``."""

    node: str
    grade: str
    end_reason: str
    first_seq: int | None
    last_seq: int | None
    discarded: int


@dataclass(frozen=True)
class StoredLog:
    """A session's checkpoints joined: ids, text, and the attempt that produced each token."""

    ids: list[int]
    text: str
    pieces: list[str]
    attempts_of_tokens: list[int]
    is_closed: bool


def stored_attempts(sql: Sql, session_id: str) -> list[StoredAttempt]:
    rows = sql(
        "SELECT node_name, seam_grade, end_reason, first_seq, last_seq, discarded_tokens"
        " FROM streaming_attempt WHERE session_id = %s ORDER BY number",
        session_id,
    )
    return [StoredAttempt(*row) for row in rows]


def stored_session(sql: Sql, session_id: str) -> dict[str, Any]:
    names = (
        "state",
        "finish_reason",
        "error_code",
        "prompt_tokens",
        "completion_tokens",
        "failovers",
    )
    row = sql(f"SELECT {', '.join(names)} FROM streaming_streamsession WHERE id = %s", session_id)[
        0
    ]
    return dict(zip(names, row, strict=True))


def stored_log(sql: Sql, session_id: str) -> StoredLog:
    """Raises ``AssertionError`` if the log has a gap, an overlap, or more after its end."""
    ids: list[int] = []
    pieces: list[str] = []
    attempts: list[int] = []
    closed_at = None
    rows = sql(
        "SELECT first_seq, last_seq, attempt, token_ids, text, text_ends, terminal"
        " FROM streaming_tokencheckpoint WHERE session_id = %s ORDER BY first_seq",
        session_id,
    )
    for first, last, attempt, some_ids, some_text, ends, terminal in rows:
        assert closed_at is None, "rows after the terminal record"
        assert first == len(ids) + 1, f"the log jumps from {len(ids)} to {first}"
        batch = array("i", bytes(some_ids))
        assert last == first + len(batch) - 1 + (terminal is not None)
        offsets = array("i", bytes(ends))
        assert len(offsets) == len(batch)
        decoded = bytes(some_text).decode()
        assert (offsets[-1] if offsets else 0) == len(decoded)
        pieces += [decoded[a:b] for a, b in pairwise([0, *offsets])]
        ids += batch
        attempts += [attempt] * len(batch)
        closed_at = last if terminal is not None else None
    return StoredLog(ids, "".join(pieces), pieces, attempts, closed_at is not None)
