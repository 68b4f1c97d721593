"""This gateway process as others see it: a row with a heartbeat, and an advisory lock.

The id is never reused. ``fleet.gateway_lock`` says what the lock is for.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool


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
