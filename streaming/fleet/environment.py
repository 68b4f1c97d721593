"""The nodes of ENGINE_NODES, written into the node table where everybody finds them."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from psycopg_pool import AsyncConnectionPool

from streaming.core.nodes import NodeSpec
from streaming.fleet.node_table import forget_rows

_LOCK = 0x554E4201  # one process at a time: several start together

# Names and addresses are unique, each for itself: either may be an operator's already.
_NODE = """
WITH spec(name, dialect, base_url, weight, options) AS (
    VALUES (%s::text, %s::text, %s::text, %s::float8, %s::jsonb)
)
"""
_ADD = f"""{_NODE}
INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source, weight, options,
    created_at, health, health_reason, models_served)
SELECT name, dialect, base_url, 'active', 'environment', weight, options, now(), 'unknown', '', '[]'
FROM spec ON CONFLICT DO NOTHING
"""
_UPDATE = f"""{_NODE}
UPDATE streaming_inferencenode node SET dialect = spec.dialect, options = spec.options
FROM spec WHERE node.name = spec.name AND node.source = 'environment'
"""


async def sync_environment_nodes(pool: AsyncConnectionPool, specs: Sequence[NodeSpec]) -> None:
    """Make the rows whose source is the environment those of ``specs``; leave all others alone.

    A node that an operator has added under the same name or address stays the operator's.
    """
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        cursor = await connection.execute(
            "SELECT id FROM streaming_inferencenode WHERE source = 'environment'"
            " AND NOT (name, base_url) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            ([spec.name for spec in specs], [spec.base_url for spec in specs]),
        )
        await forget_rows(connection, [row[0] for row in await cursor.fetchall()])
        for spec in specs:
            values = (
                spec.name,
                spec.dialect,
                spec.base_url,
                spec.weight,
                orjson.dumps(spec.options.said()).decode(),
            )
            await connection.execute(_ADD, values)
            await connection.execute(_UPDATE, values)
