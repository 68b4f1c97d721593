"""The node table, as gateways read and write it. Operators write it too, through ``services``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.fleet.lease import Lease

Row = dict[str, Any]

# The age of what was found refers to the moment of the query, on the database's clock.
_NODES = """
SELECT node.id, node.name, node.dialect, node.base_url, node.admin_state, node.weight, node.options,
    node.source, node.failover, node.hedging, node.defragment, node.circuit, node.parent_id,
    node.probe_asked_at, node.circuit_reset_at,
    parent.base_url AS parent_url,
    node.health, node.health_reason AS reason, node.models_served AS models, node.capabilities,
    node.figures, extract(epoch FROM now() - node.checked_at)::float8 AS age
FROM streaming_inferencenode node LEFT JOIN streaming_inferencenode parent ON parent.id = node.parent_id
ORDER BY node.id
"""
# What the dead had runs no more. They count among those who share the nodes until their heartbeats
# are old: all lose their locks for a moment when the database restarts.
_OTHERS = f"""
SELECT CASE WHEN {OWNER_IS_DEAD} THEN '{{}}' ELSE i.node_streams END AS node_streams
FROM streaming_gatewayinstance i
WHERE i.id <> %s AND i.stopped_at IS NULL AND i.heartbeat_at > now() - interval '5 seconds'
"""
# Only whoever holds the lease: a process that was frozen for a while must not store old findings.
_STORE = """
UPDATE streaming_inferencenode node SET health = found.health, health_reason = found.reason,
    models_served = coalesce(found.models, node.models_served),
    capabilities = coalesce(found.capabilities, node.capabilities),
    figures = coalesce(found.figures, node.figures),
    checked_at = now() - found.age * interval '1 second'
FROM jsonb_to_recordset(%s) AS found(id int8, health text, reason text, models jsonb,
    capabilities jsonb, figures jsonb, age float8)
WHERE node.id = found.id AND EXISTS (
    SELECT FROM streaming_lease WHERE name = %s AND holder = %s AND until > now()
)
"""
# A node that is gone leaves its events behind, by its name.
_NOTE = """
INSERT INTO streaming_nodeevent (node_id, node_name, at, kind, data)
SELECT node.id, event.name, now(), event.kind, event.data
FROM jsonb_to_recordset(%s) AS event(id int8, name text, kind text, data jsonb)
LEFT JOIN streaming_inferencenode node ON node.id = event.id
"""
# A gateway knows of a drain when it reports the node although nothing runs there. Both conditions
# are needed: its report may be one of an earlier drain.
_IS_QUIET = """
NOT EXISTS (
    SELECT FROM streaming_gatewayinstance i
    WHERE i.stopped_at IS NULL AND i.heartbeat_at > now() - interval '5 seconds'
    AND (i.nodes_read_at > node.admin_state_at AND i.node_streams ->> node.id::text = '0') IS NOT TRUE
)
"""
_DRAINED = f"""
UPDATE streaming_inferencenode node SET admin_state = 'drained'
WHERE admin_state = 'draining' AND CASE WHEN options ->> 'dns' = 'all' THEN NOT EXISTS (
    SELECT FROM streaming_inferencenode child
    WHERE child.parent_id = node.id AND child.admin_state <> 'drained'
) ELSE {_IS_QUIET} END
RETURNING id, name
"""
_GONE = f"""
SELECT id, name FROM streaming_inferencenode node
WHERE source = 'dns' AND parent_id IS NULL AND {_IS_QUIET}
"""
# As Django's own deletion does: the tables have no rules for it.
_FORGET = (
    "UPDATE streaming_nodeevent SET node_id = NULL WHERE node_id = ANY(%s)",
    "UPDATE streaming_incident SET node_id = NULL WHERE node_id = ANY(%s)",
    # The addresses of a name that is gone drain before they go.
    "UPDATE streaming_inferencenode SET parent_id = NULL, admin_state_at = now()"
    " WHERE parent_id = ANY(%s)",
    "DELETE FROM streaming_inferencenode WHERE id = ANY(%s)",
)


@dataclass(frozen=True, slots=True)
class TableView:
    """What one reading has brought. ``others``: by node id the attempts of each other gateway."""

    nodes: list[Row]
    policies: dict[str, Row]
    others: list[dict[str, int]]
    read_at: datetime


@dataclass(frozen=True, slots=True)
class NodeNote:
    """One row of ``NodeEvent``. ``data`` says among other things ``by`` whom it came."""

    node_id: int | None
    node_name: str
    kind: str
    data: Mapping[str, Any]

    def row(self) -> Row:
        return {
            "id": self.node_id,
            "name": self.node_name,
            "kind": self.kind,
            "data": self.data,
        }


class NodeTable:
    """All methods raise ``psycopg.Error`` or ``PoolTimeout``."""

    def __init__(self, pool: AsyncConnectionPool, instance_id: int) -> None:
        self._pool = pool
        self._instance_id = instance_id

    async def read(self) -> TableView:
        """The nodes as they are configured and as they were found, policies, and others' load."""
        async with self._pool.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute("SELECT now() AS now")
            (moment,) = await cursor.fetchall()
            await cursor.execute(_NODES)
            nodes = await cursor.fetchall()
            await cursor.execute(
                "SELECT model, failover, hedging, defragment FROM streaming_modelpolicy"
            )
            policies = {row["model"]: row for row in await cursor.fetchall()}
            await cursor.execute(_OTHERS, (self._instance_id,))
            others = [row["node_streams"] for row in await cursor.fetchall()]
        return TableView(nodes, policies, others, moment["now"])

    async def store(self, found: Mapping[int, Row], lease: Lease) -> None:
        """Store findings (``Finding.stored``) by node id, if ``lease`` is ours."""
        values = [{"id": node_id, **finding} for node_id, finding in found.items()]
        async with self._pool.connection() as connection:
            await connection.execute(
                _STORE, (orjson.dumps(values).decode(), lease.name, lease.holder)
            )

    async def note(self, notes: Sequence[NodeNote]) -> None:
        """Store events."""
        async with self._pool.connection() as connection:
            await add_notes(connection, notes)

    async def store_circuits(self, circuits: Mapping[int, str]) -> None:
        """Store how circuits stand, by node id."""
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE streaming_inferencenode node SET circuit = moved.circuit"
                " FROM unnest(%s::int8[], %s::text[]) moved(id, circuit) WHERE node.id = moved.id",
                (list(circuits), list(circuits.values())),
            )

    async def settle_drains(self, by: str) -> None:
        """Draining nodes on which no gateway runs anything any more become ``drained``.

        Addresses that have left their name's records are removed then.
        """
        async with self._pool.connection() as connection, connection.transaction():
            cursor = await connection.execute(_DRAINED)
            drained = await cursor.fetchall()
            cursor = await connection.execute(_GONE)
            gone = await cursor.fetchall()
            notes = [
                NodeNote(node_id, name, "drained", {"by": by, "reason": "nothing runs there"})
                for node_id, name in drained
            ]
            notes += [
                NodeNote(None, name, "removed", {"by": by, "reason": "its address is gone"})
                for _, name in gone
            ]
            if gone:
                await forget_rows(connection, [node_id for node_id, _ in gone])
            if notes:
                await add_notes(connection, notes)


async def forget_rows(connection: psycopg.AsyncConnection[Any], node_ids: Sequence[int]) -> None:
    """Delete nodes; what is told of them stays. To be called in a transaction."""
    for statement in _FORGET:
        await connection.execute(statement, (list(node_ids),))


async def add_notes(connection: psycopg.AsyncConnection[Any], notes: Sequence[NodeNote]) -> None:
    """Store events."""
    rows = orjson.dumps([note.row() for note in notes]).decode().replace("\\u0000", "\\ufffd")
    await connection.execute(_NOTE, (rows,))
