"""Opening and closing incidents; ``services.incidents`` does the same from Django's side.

At most one is open for each kind and subject (a partial unique constraint), so everybody may open
one at any time, also twice at once.
"""

from __future__ import annotations

import enum
from typing import Any

import orjson
import psycopg


class IncidentKind(enum.StrEnum):
    KV_NOT_RECLAIMED = "kv_not_reclaimed"  # requests without a session run on a node
    KV_FRAGMENTED = "kv_fragmented"  # a node's cache stays occupied after it was reset
    CONTENT_OVERDUE = "content_overdue"  # content is there for longer than was agreed
    SWEEPER_SILENT = "sweeper_silent"  # Celery's beat or worker does nothing


# An open one is kept up to date; ``true`` only for a new one (its row has no older version).
OPEN = """
INSERT INTO streaming_incident (kind, subject, node_id, session_id, opened_at, data)
VALUES (%s, %s, (SELECT id FROM streaming_inferencenode WHERE id = %s), %s, now(), %s::jsonb)
ON CONFLICT (kind, subject) WHERE closed_at IS NULL DO UPDATE SET data = excluded.data
RETURNING xmax = 0
"""

CLOSE = """
UPDATE streaming_incident SET closed_at = now()
WHERE kind = %s AND subject = %s AND closed_at IS NULL
"""

# Of a node whose requests have all been seen to be gone.
CLOSE_RECLAIMED = f"""
UPDATE streaming_incident i SET closed_at = now()
WHERE kind = '{IncidentKind.KV_NOT_RECLAIMED}' AND closed_at IS NULL AND node_id = ANY(%s)
AND NOT EXISTS (
    SELECT 1 FROM streaming_attempt a WHERE a.node_id = i.node_id AND a.reclaim = 'overdue'
)
RETURNING subject
"""


def open_arguments(
    kind: str, subject: str, node_id: int | None, session_id: Any, data: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of ``OPEN``."""
    return (kind, subject[:200], node_id, session_id, orjson.dumps(data).decode())


async def open_incident(
    connection: psycopg.AsyncConnection[tuple[Any, ...]],
    kind: str,
    subject: str,
    *,
    node_id: int | None = None,
    data: dict[str, Any] | None = None,
) -> bool:
    """Open one, or bring the open one up to date; whether it is new."""
    cursor = await connection.execute(
        OPEN, open_arguments(kind, subject, node_id, None, data or {})
    )
    row = await cursor.fetchone()
    return bool(row and row[0])


async def close_incident(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], kind: str, subject: str
) -> bool:
    """Close the open one; whether there was one."""
    cursor = await connection.execute(CLOSE, (kind, subject[:200]))
    return cursor.rowcount > 0
