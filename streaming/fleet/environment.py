"""The nodes of ENGINE_NODES, written into the node table where everybody finds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import orjson
from psycopg_pool import AsyncConnectionPool

from streaming.core.nodes import NodeSpec

_LOCK = 0x554E4201  # one process at a time: several start together


async def sync_environment_nodes(pool: AsyncConnectionPool, specs: Sequence[NodeSpec]) -> None:
    """Make the rows whose source is the environment those of ``specs``; leave all others alone.

    A node that an operator has added under the same name or address stays the operator's.
    """
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(
            "DELETE FROM streaming_inferencenode WHERE source = 'environment'"
            " AND NOT (name, base_url) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            ([spec.name for spec in specs], [spec.base_url for spec in specs]),
        )
        for spec in specs:
            await connection.execute(
                "INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source,"
                " weight, options, created_at, health, health_reason, models_served)"
                " VALUES (%s, %s, %s, 'active', 'environment', %s, %s::jsonb, now(), 'unknown', '', '[]')"
                " ON CONFLICT (name) DO UPDATE SET dialect = excluded.dialect, options = excluded.options"
                " WHERE streaming_inferencenode.source = 'environment'",
                (
                    spec.name,
                    spec.dialect,
                    spec.base_url,
                    spec.weight,
                    orjson.dumps(dataclasses.asdict(spec.options)).decode(),
                ),
            )
