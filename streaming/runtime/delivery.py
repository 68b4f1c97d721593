"""How far readers have come, stored apart from the journal's flushes: when one leaves or returns."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from streaming.core.delivery import Marks
from streaming.fleet.gateway_lock import OWNER_IS_DEAD

_STORE = """
UPDATE session_fence f SET
    sent_seq = greatest(f.sent_seq, least(b.sent, f.durable_seq)),
    taken_seq = greatest(least(f.taken_seq, b.denied), least(b.taken, f.durable_seq)),
    cursor_seq = greatest(f.cursor_seq, least(b.cursor, f.durable_seq)),
    acked_seq = greatest(f.acked_seq, least(b.acked, f.durable_seq))
FROM (SELECT %s::uuid AS session_id, %s::int8 AS sent, %s::int8 AS taken, %s::int8 AS cursor,
    %s::int8 AS acked, %s::int8 AS denied) b, session_fence former
WHERE f.session_id = b.session_id AND former.session_id = b.session_id
RETURNING former.delivered_seq, f.delivered_seq, former.sent_seq <> f.sent_seq
"""
# By now whoever wrote the session's end while we waited for its fence has committed it.
_ANNOUNCE = """
INSERT INTO streaming_outboxmessage (session_id, kind, data, created_at)
SELECT id, 'session_delivered', '{}', now() FROM streaming_streamsession
WHERE id = %s AND (ended_at IS NOT NULL OR state = 'suspended')
"""
_TOKENS = (
    "SELECT completion_tokens FROM streaming_streamsession WHERE id = %s AND ended_at IS NOT NULL"
)

# Whoever lives has beaten within 5 s, and has stored what it sent within 2 s: who outlived the
# session's end or suspension by so long took no news of it along.
_DEAD_SENDER = f"""
SELECT EXISTS (
    SELECT 1 FROM streaming_gatewayinstance i
    WHERE i.stopped_at IS NULL AND i.heartbeat_at >= s.created_at - interval '5 seconds'
    AND i.heartbeat_at <= coalesce(
        CASE WHEN s.state = 'suspended' THEN s.suspended_at ELSE s.ended_at END, now()
    ) + interval '2 seconds'
    AND {OWNER_IS_DEAD}
) FROM streaming_streamsession s WHERE s.id = %s
"""


class Moved(NamedTuple):
    """What counted as delivered, and what does now; ``tokens``: of a session that has ended."""

    former: int
    delivered: int
    tokens: int | None


async def store(
    connection: psycopg.AsyncConnection[tuple[Any, ...]],
    session_id: UUID,
    marks: Marks,
    denied: int | None = None,
) -> Moved | None:
    """Move a session's marks, none beyond its log.

    ``denied``: a reader has no more than this (``Marks.deny``). What moves after the session's end,
    or while it is suspended, is announced to billing in the same transaction. None: no such session.
    """
    async with connection.transaction():
        cursor = await connection.execute(
            _STORE,
            (
                session_id,
                marks.sent,
                marks.taken,
                marks.cursor,
                marks.acked,
                2**62 if denied is None else denied,
            ),
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        former, delivered, more_sent = row
        if former != delivered or more_sent:
            await connection.execute(_ANNOUNCE, (session_id,))
        cursor = await connection.execute(_TOKENS, (session_id,))
        ended = await cursor.fetchone()
    return Moved(former, delivered, None if ended is None else ended[0])


async def may_have_died_sending(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], session_id: UUID
) -> bool:
    """Whether a gateway process has died while this session was live: what it sent last is unknown."""
    async with connection.transaction():  # it probes the locks of those that live
        cursor = await connection.execute(_DEAD_SENDER, (session_id,))
        row = await cursor.fetchone()
    return row is not None and bool(row[0])
