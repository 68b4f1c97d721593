"""The token log as it stands in PostgreSQL, for readers far behind and for continuations."""

from __future__ import annotations

from array import array
from typing import Any
from uuid import UUID

import orjson
from psycopg_pool import AsyncConnectionPool

from streaming.runtime.token_log import LogSlice, Segment, SessionLog

ROWS_AT_ONCE = 200


async def slice_from_database(
    pool: AsyncConnectionPool, session_id: UUID, seq: int
) -> LogSlice | None:
    """Durable tokens beyond ``seq``, at most ``ROWS_AT_ONCE`` checkpoints of them."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT first_seq, last_seq, text, text_ends, terminal FROM streaming_tokencheckpoint"
            " WHERE session_id = %s AND last_seq > %s ORDER BY first_seq LIMIT %s",
            (session_id, seq, ROWS_AT_ONCE),
            binary=True,
        )
        segments = [_segment(*row) for row in await cursor.fetchall()]
    if not segments:
        return None
    last = segments[-1]
    text = "".join(segment.after(seq, last.last_seq) for segment in segments)
    return LogSlice(last.last_seq, text, last.terminal)


async def full_text(pool: AsyncConnectionPool, log: SessionLog) -> str:
    """The text of the whole answer so far, once all of it is durable. Raises ``log.lost``."""
    await log.flushed()
    parts = []
    seq = 0
    while seq < log.durable_seq:
        piece = await slice_from_database(pool, log.session_id, seq)
        if piece is None:
            break
        parts.append(piece.text)
        seq = piece.last_seq
    return "".join(parts)


def _segment(first: int, last: int, text: bytes, ends: bytes, terminal: Any) -> Segment:
    return Segment(
        first,
        last,
        bytes(text).decode(),
        array("i", bytes(ends)),
        None if terminal is None else orjson.loads(bytes(terminal)),
    )
