"""This gateway process as others see it: a row with a heartbeat, and an advisory lock.

The id is never reused. The journal's connection holds the lock on it; a free lock or an old
heartbeat means that the process is dead (a frozen one keeps its lock).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from streaming.runtime.journal import ADVISORY_CLASS


async def register(dsn: str) -> int:
    """Insert the row of this process and return its id."""
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, connect_timeout=10
    ) as connection:
        cursor = await connection.execute(
            "INSERT INTO streaming_gatewayinstance (hostname, pid, started_at, heartbeat_at)"
            " VALUES (%s, %s, now(), now()) RETURNING id",
            (socket.gethostname(), os.getpid()),
        )
        row = await cursor.fetchone()
        assert row is not None
        return row[0]


async def beat(
    pool: AsyncConnectionPool,
    instance_id: int,
    node_streams: Mapping[str, int],
    nodes_read_at: datetime | None,
    figures: Mapping[str, int],
) -> None:
    """Write the heartbeat, and what runs here: attempts by node id, and ``figures`` of all.

    ``nodes_read_at``: when the node table was last read, before which nothing of it is known.
    """
    async with pool.connection() as connection:
        await connection.execute(
            "UPDATE streaming_gatewayinstance SET heartbeat_at = now(), node_streams = %s::jsonb,"
            " nodes_read_at = %s, figures = %s::jsonb WHERE id = %s",
            (
                orjson.dumps(node_streams).decode(),
                nodes_read_at,
                orjson.dumps(figures).decode(),
                instance_id,
            ),
        )


async def retire(pool: AsyncConnectionPool, instance_id: int) -> None:
    """Say that this process ended as it should."""
    async with pool.connection() as connection:
        await connection.execute(
            "UPDATE streaming_gatewayinstance SET heartbeat_at = now(), stopped_at = now() WHERE id = %s",
            (instance_id,),
        )


# A condition on a row ``i`` of the instance table. Probing takes the lock shared and for the
# transaction only, so it is released at once and never keeps its owner from getting it back.
OWNER_IS_DEAD = f"""(
    i.id IS NULL OR i.stopped_at IS NOT NULL
    OR i.heartbeat_at < now() - interval '5 seconds'
    OR pg_try_advisory_xact_lock_shared({ADVISORY_CLASS}, i.id::int)
)"""
