"""Keeps the fleet true: reads the configured nodes from PostgreSQL, and probes each of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.http import EngineClient
from streaming.engines.registry import dialect_for
from streaming.fleet.nodes import Fleet, Health, Node

logger = logging.getLogger(__name__)


MOST_SPARES = 64
"""Connections that one process keeps ready at one node."""


class FleetWatch:
    """Background tasks: one that reads the table, and one per node that probes it."""

    def __init__(self, fleet: Fleet, client: EngineClient, pool: AsyncConnectionPool) -> None:
        self._fleet = fleet
        self._client = client
        self._pool = pool
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._hurry: dict[int, asyncio.Event] = {}
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the nodes and probe each once, so that the first request finds them."""
        await self._read_table()
        first = [asyncio.create_task(self._probe(node)) for node in self._fleet.nodes.values()]
        if first:
            await asyncio.wait(first, timeout=conf().health_timeout)
        self._reader = asyncio.create_task(self._read_forever(), name="fleet table")

    async def stop(self) -> None:
        tasks = [*self._probes.values(), *([self._reader] if self._reader else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suspect(self, node: Node, reason: str) -> None:
        """A stream on ``node`` failed in a way that is the node's: no new work until a probe is good."""
        if node.health is Health.UP:
            self._fleet.mark(node, Health.SUSPECT, reason)
        if (hurry := self._hurry.get(node.id)) is not None:
            hurry.set()

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(conf().health_interval)
            try:
                await self._read_table()
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("the node table cannot be read: %s", exc)

    async def _read_table(self) -> None:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT id, name, dialect, base_url, admin_state, weight, options FROM streaming_inferencenode"
            )
            rows = {row[0]: row[1:] for row in await cursor.fetchall()}
        for node_id in set(self._fleet.nodes) - set(rows):
            self._forget(node_id)
        for node_id, row in rows.items():
            try:
                self._update(node_id, *row)
            except (ValueError, KeyError, TypeError) as exc:
                # Somebody wrote past the model's validation; the other nodes are fine.
                logger.error("node %s is configured wrongly and is left out: %r", row[0], exc)

    def _update(
        self, node_id: int, name: str, dialect: str, base_url: str, admin_state: str,
        weight: float, options: dict[str, Any],
    ) -> None:  # fmt: skip
        accepting = admin_state == "active"
        parsed = NodeOptions.parse(options)
        node = self._fleet.nodes.get(node_id)
        if node is not None and (node.base_url, node.dialect.name) != (base_url, dialect):
            self._forget(node_id)
            node = None
        if node is None:
            engine = dialect_for(dialect, self._client, base_url, parsed)
            node = Node(node_id, name, base_url, engine, parsed)
            self._fleet.nodes[node_id] = node
            self._hurry[node_id] = asyncio.Event()
            self._probes[node_id] = asyncio.create_task(
                self._probe_forever(node), name=f"probe {name}"
            )
        changed = (node.name, node.options, node.weight, node.accepting) != (
            name, parsed, weight, accepting,
        )  # fmt: skip
        node.name, node.options, node.weight, node.accepting = name, parsed, weight, accepting
        if changed:
            self._fleet.announce_change()

    def _forget(self, node_id: int) -> None:
        node = self._fleet.nodes.pop(node_id)
        self._probes.pop(node_id).cancel()
        del self._hurry[node_id]
        self._client.drop_spares(node.base_url)
        node.accepting = False
        self._fleet.announce_change()

    async def _probe_forever(self, node: Node) -> None:
        hurry = self._hurry[node.id]
        while True:
            try:
                async with asyncio.timeout(conf().health_interval):
                    await hurry.wait()
            except TimeoutError:
                pass
            hurry.clear()
            await self._probe(node)

    async def _probe(self, node: Node) -> None:
        before = (node.health, node.models)
        try:
            async with asyncio.timeout(conf().health_timeout):
                report = await node.dialect.probe(conf().health_timeout)
        except (AttemptFailed, RejectedByEngine, TimeoutError) as exc:
            self._fleet.mark(node, Health.DOWN, str(exc) or "no answer in time")
        except Exception as exc:  # noqa: BLE001  a strange answer or address must not end the probing
            self._fleet.mark(
                node, Health.DOWN, f"not what a {node.dialect.name} server says: {exc!r}"
            )
        else:
            node.models = report.models
            if before != (Health.UP, report.models):
                self._fleet.mark(node, Health.UP)
            await self._keep_spares(node)
        if node.health is Health.DOWN:
            self._client.drop_spares(node.base_url)
        if (node.health, node.models) != before:
            await self._report(node)

    async def _keep_spares(self, node: Node) -> None:
        """As many connections as streams would come here at once if another node died."""
        if node.dialect.keeps_idle_connections:
            others = (n.in_flight for n in self._fleet.nodes.values() if n is not node)
            wanted = min(max(others, default=0), MOST_SPARES) if node.accepting else 0
            await self._client.keep_spares(node.base_url, wanted)

    async def _report(self, node: Node) -> None:
        """Show in the table what was seen; the fleet itself does not read it back."""
        try:
            async with self._pool.connection() as connection:
                await connection.execute(
                    "UPDATE streaming_inferencenode SET health = %s, health_reason = %s,"
                    " models_served = %s::jsonb, checked_at = now() WHERE id = %s",
                    (
                        node.health.value,
                        node.reason[:300].replace("\x00", "\ufffd"),
                        orjson.dumps(list(node.models)).decode(),
                        node.id,
                    ),
                )
        except (psycopg.Error, PoolTimeout) as exc:
            logger.info("the health of %s cannot be stored: %s", node.name, exc)
