"""A node table, and watches on it in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool

from streaming.engines.http import EngineClient, engine_client
from streaming.fleet.nodes import Fleet, Node
from streaming.fleet.watch import FleetWatch
from tests.stack import Stack


class Names:
    """A resolver for tests: what each name has for addresses, or the error that it meets."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self.error: OSError | None = None
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.addresses


class Watch:
    """A fleet and what watches it, as a gateway process has them; ``sent`` are its messages."""

    def __init__(
        self, number: int, pool: AsyncConnectionPool, client: EngineClient, names: Names
    ) -> None:
        self.fleet = Fleet()
        self.sent: list[dict[str, Any]] = []
        self.watch = FleetWatch(self.fleet, client, pool, number, self.sent.append, names)

    def node(self, name: str) -> Node:
        return next(node for node in self.fleet.nodes.values() if node.name == name)

    @property
    def names(self) -> set[str]:
        return {node.name for node in self.fleet.nodes.values()}


class Workshop:
    """Watches in this process on the node table of a stack."""

    def __init__(self, stack: Stack, pool: AsyncConnectionPool, client: EngineClient) -> None:
        self.stack = stack
        self.pool = pool
        self.names = Names()
        self._client = client
        self._watches: list[Watch] = []

    def add(self, name: str, url: str, **columns: Any) -> int:
        """A row of the node table; its id."""
        row = {"dialect": "vllm", "source": "admin", "options": "{}", **columns}
        marks = ", ".join(["%s"] * len(row))
        return self.stack.sql(
            "INSERT INTO streaming_inferencenode (name, base_url, admin_state, weight, created_at,"
            f" health, health_reason, models_served, {', '.join(row)}) VALUES (%s, %s, 'active', 1,"
            f" now(), 'unknown', '', '[]', {marks}) RETURNING id",
            name, url, *row.values(),
        )[0][0]  # fmt: skip

    async def start(self, number: int = 1) -> Watch:
        """One more watch; it ends with the test."""
        watch = Watch(number, self.pool, self._client, self.names)
        self._watches.append(watch)
        await watch.watch.start()
        return watch

    async def stop(self) -> None:
        for watch in self._watches:
            await watch.watch.stop()


@pytest.fixture(scope="module")
def node_table() -> Iterator[Stack]:
    """A database without gateways."""
    with Stack(gateways=0) as stack:
        yield stack


@pytest.fixture
async def workshop(node_table: Stack, settings: Any) -> AsyncIterator[Workshop]:
    settings.STREAMING = dataclasses.replace(
        settings.STREAMING, health_interval=0.1, health_timeout=1.0, dns_interval=0.1
    )
    for table in ("nodeevent", "inferencenode", "lease", "gatewayinstance", "modelpolicy"):
        node_table.sql(f"DELETE FROM streaming_{table}")
    pool = AsyncConnectionPool(
        node_table.database_url, min_size=1, max_size=8, open=False, kwargs={"autocommit": True}
    )
    await pool.open()
    client = engine_client()
    shop = Workshop(node_table, pool, client)
    try:
        yield shop
    finally:
        await shop.stop()
        await client.aclose()
        await pool.close()
