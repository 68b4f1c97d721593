"""What is to be stored of the nodes: at once what has changed, the rest at the pace of the probes."""

from __future__ import annotations

import asyncio
import logging

import psycopg
from psycopg_pool import PoolTimeout

from streaming.conf import conf
from streaming.fleet.breaker import Circuit
from streaming.fleet.findings import Finding
from streaming.fleet.lease import Lease
from streaming.fleet.node_table import NodeNote, NodeTable, Row
from streaming.fleet.nodes import Node

logger = logging.getLogger(__name__)

NOTES_AT_ONCE, NOTES_KEPT = 100, 1000
PAUSE_SECONDS = 0.15


class Chronicle:
    """Findings are stored only while ``lease`` is held; events and circuits are everybody's own."""

    def __init__(self, table: NodeTable, lease: Lease) -> None:
        self._table = table
        self._lease = lease
        self._found: dict[int, Row] = {}
        self._circuits: dict[int, str] = {}
        self._circuits_at = 0.0
        self._notes: list[NodeNote] = []
        self._has_changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Chronicle: {len(self._found)} findings, {len(self._notes)} events to store>"

    def found(self, node: Node, finding: Finding) -> None:
        """The latest finding; what it does not tell stays as it is."""
        told = finding.stored(asyncio.get_running_loop().time())
        known = {name: value for name, value in told.items() if value is not None}
        self._found[node.id] = {**self._found.get(node.id, {}), **known}

    def circuit(self, node: Node, state: Circuit) -> None:
        """A circuit has moved."""
        self._circuits[node.id] = state.value
        self._has_changed.set()

    def knows_better(self, node: Node, asked_at: float) -> bool:
        """Whether the table, read at ``asked_at``, may not have had our own news of a circuit."""
        return node.id in self._circuits or asked_at <= self._circuits_at

    def note(self, node: Node, kind: str, *, by: str, **data: str) -> None:
        """Something has happened to a node (``models.NodeEvent``)."""
        note = NodeNote(node.id, node.name, kind, {"by": by, **data})
        self._notes = [*self._notes[-NOTES_KEPT:], note]
        self._has_changed.set()

    async def write_forever(self) -> None:
        """Store what there is, again and again."""
        while True:
            try:
                async with asyncio.timeout(conf().health_interval):
                    await self._has_changed.wait()
                # When a node dies, the streams that were on it come first.
                await asyncio.sleep(PAUSE_SECONDS)
            except TimeoutError:
                pass
            self._has_changed.clear()
            try:
                await self._write()
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("what was found of the nodes cannot be stored: %s", exc)

    async def _write(self) -> None:
        found, self._found = self._found, {}
        if found:
            await self._table.store(found, self._lease)
        if circuits := dict(self._circuits):
            await self._table.store_circuits(circuits)
            self._circuits_at = asyncio.get_running_loop().time()
            for node_id, state in circuits.items():
                if self._circuits.get(node_id) == state:
                    del self._circuits[node_id]
        while self._notes:
            notes = self._notes[:NOTES_AT_ONCE]
            await self._table.note(notes)
            self._notes = [note for note in self._notes if note not in notes]
