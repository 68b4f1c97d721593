"""Keeps the fleet true: reads the node table, probes the nodes or hears from the process that does.

One process at a time probes all nodes: whoever holds the lease. It tells the others over the bus and
in the node table, so they work without Redis too. A node on which a stream has failed is looked at
at once by whoever noticed, and what nobody has told of for a while by everybody: neither a dead bus
nor a dead prober leaves anybody with old news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.http import EngineClient
from streaming.engines.registry import dialect_for
from streaming.fleet.breaker import Circuit
from streaming.fleet.dns import AddressBook, Resolve, system_resolve
from streaming.fleet.findings import Finding
from streaming.fleet.lease import LEASE_SECONDS, RENEW_SECONDS, Lease
from streaming.fleet.node_table import NodeNote, NodeTable, Row, TableView
from streaming.fleet.nodes import Fleet, Health, Node, Switches

logger = logging.getLogger(__name__)


MOST_SPARES = 64
"""Connections that one process keeps ready at one node."""
READ_SECONDS = 1.0
FLOWING_SECONDS = 1.0
"""A node whose last data is younger than this works, whatever others say."""

DATABASE_ERRORS = (psycopg.Error, PoolTimeout)


class FleetWatch:
    """Background tasks: for the lease, the table and names, and one per node that probes it.

    ``broadcast`` sends a message to all other gateway processes; it may not arrive.
    """

    def __init__(
        self,
        fleet: Fleet,
        client: EngineClient,
        pool: AsyncConnectionPool,
        instance_id: int,
        broadcast: Callable[[dict[str, Any]], None],
        resolve: Resolve = system_resolve,
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._instance_id = instance_id
        self._broadcast = broadcast
        self._table = NodeTable(pool, instance_id)
        self._lease = Lease(pool, "probe", f"gateway {instance_id}")
        self._addresses = AddressBook(pool, resolve, self._lease.holder)
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._hurry: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._found: dict[int, Row] = {}  # by node id, to be stored
        self._notes: list[NodeNote] = []  # to be stored
        self._something_to_store = asyncio.Event()
        self._circuits: dict[int, str] = {}  # as the table had them when it was last read
        self.read_at: datetime | None = None
        """When the node table was last read, on the database's clock."""
        fleet.circuit_moved = self._circuit_moved

    def __repr__(self) -> str:
        return f"<FleetWatch of {self._fleet!r}, {self._lease!r}>"

    @property
    def is_prober(self) -> bool:
        """Whether this process probes for all."""
        return self._lease.is_held

    async def start(self) -> None:
        """Know the nodes, so that the first request finds them. Raises ``psycopg.Error``."""
        await self._lease.claim()
        await self._read_table()
        now = asyncio.get_running_loop().time()
        first = [
            asyncio.create_task(self._probe(node))
            for node in self._fleet.nodes.values()
            if self.is_prober or self._is_old(node, now)
        ]
        if first:
            await asyncio.wait(first, timeout=conf().health_timeout)
        self._tasks = [
            asyncio.create_task(work, name=name)
            for work, name in (
                (self._hold_lease(), "probe lease"),
                (self._read_forever(), "fleet table"),
                (self._store_forever(), "fleet findings"),
                (self._look_up_forever(), "fleet names"),
            )
        ]

    async def stop(self) -> None:
        tasks = [*self._probes.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._lease.release()
        except DATABASE_ERRORS as exc:
            logger.info("the lease is left to run out: %s", exc)

    def suspect(self, node: Node, reason: str) -> None:
        """A stream on ``node`` failed in a way that is the node's: no new work until a probe is good.

        This process looks at once, and so does the one that probes for all.
        """
        if node.health is Health.UP:
            self._move_to_suspect(node, reason, self._lease.holder)
            self._broadcast(
                {"type": "suspect", "from": self._instance_id, "node": node.id, "reason": reason}
            )
        if (hurry := self._hurry.get(node.id)) is not None:
            hurry.set()

    def streams(self) -> dict[str, int]:
        """The attempts of this process by node id; of nodes that take no work also when it is 0.

        That 0 is how others know that this process knows of the drain.
        """
        return {
            str(node.id): node.in_flight
            for node in self._fleet.nodes.values()
            if node.in_flight or not node.accepting
        }

    # What other processes tell

    def receive(self, message: dict[str, Any]) -> None:
        """A message of another process's watch: ``found``, ``suspect`` or ``circuit``."""
        node = self._fleet.nodes.get(message["node"])
        if node is None or message["from"] == self._instance_id:
            return
        now = asyncio.get_running_loop().time()
        if message["type"] == "found":
            self._hear(node, Finding.read(message["finding"], now))
        elif message["type"] == "circuit":
            self._hear_circuit(node, message["state"])
        elif message["type"] == "suspect" and self.is_prober and node.health is Health.UP:
            self._move_to_suspect(node, message["reason"], f"gateway {message['from']}")
            self._hurry[node.id].set()

    def _hear(self, node: Node, finding: Finding) -> None:
        """Believe what another process has found, unless we know better: then look ourselves."""
        loop_time = asyncio.get_running_loop().time()
        if finding.at <= node.known_at:
            return
        flows = loop_time - node.last_data < FLOWING_SECONDS
        if (finding.health is Health.UP and node.found_down_here) or (
            finding.health is Health.DOWN and node.health is Health.UP and flows
        ):
            self._hurry[node.id].set()
        elif finding.health is not Health.SUSPECT:  # whose it is will be decided in a moment
            self._believe(node, finding)

    def _hear_circuit(self, node: Node, state: str) -> None:
        before = node.breaker.state
        node.breaker.hear(Circuit(state), asyncio.get_running_loop().time())
        if node.breaker.state is Circuit.CLOSED and before is not Circuit.CLOSED:
            node.readmission.begin(asyncio.get_running_loop().time())
        self._fleet.announce_change()

    def _circuit_moved(self, node: Node, before: Circuit, reason: str) -> None:
        """A circuit has moved here: store it and tell the others. Trials are everybody's own."""
        after = node.breaker.state
        if after is not Circuit.HALF_OPEN:
            self._broadcast(
                {
                    "type": "circuit", "from": self._instance_id,
                    "node": node.id, "state": after.value,
                }
            )  # fmt: skip
        self._note(node, f"circuit_{after.value}", was=before.value, reason=reason)

    # The lease

    async def _hold_lease(self) -> None:
        while True:
            held = self._lease.is_held
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if await self._lease.claim() and not held:
                    logger.info("this process probes the nodes from now on")
                    for hurry in self._hurry.values():
                        hurry.set()
                    self._addresses.hurry()
            except DATABASE_ERRORS as exc:
                logger.info("the lease to probe cannot be had: %s", exc)

    # The table

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(min(READ_SECONDS, conf().health_interval))
            try:
                await self._read_table()
                if self.is_prober:
                    await self._table.settle_drains(self._lease.holder)
            except DATABASE_ERRORS as exc:
                logger.info("the node table cannot be read: %s", exc)

    async def _read_table(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        view = await self._table.read()
        rows = {row["id"]: row for row in view.nodes if row["options"].get("dns") != "all"}
        for node_id in set(self._fleet.nodes) - set(rows):
            self._forget(node_id)
        for node_id, row in rows.items():
            try:
                self._update(node_id, row, asked_at)
            except (ValueError, KeyError, TypeError) as exc:
                # Somebody wrote past the model's validation; the other nodes are fine.
                logger.error("node %s is configured wrongly and is left out: %r", row["name"], exc)
        self._addresses.names = [row for row in view.nodes if row["options"].get("dns") == "all"]
        self._take_over_policies(view)
        count = len(self._fleet.nodes)
        for place, node in enumerate(sorted(self._fleet.nodes.values(), key=lambda node: node.id)):
            node.rank = (place - (self._instance_id - 1)) % count
            node.others_in_flight = view.others.get(node.id, 0)
        self.read_at = view.read_at

    def _take_over_policies(self, view: TableView) -> None:
        self._fleet.policies = {model: _switches(row) for model, row in view.policies.items()}

    def _update(self, node_id: int, row: Row, asked_at: float) -> None:
        is_leaving = row["source"] == "dns" and row["parent_id"] is None
        accepting = row["admin_state"] == "active" and not is_leaving
        options = NodeOptions.parse(row["options"])
        node = self._fleet.nodes.get(node_id)
        if node is not None and (node.base_url, node.dialect.name) != (
            row["base_url"], row["dialect"],
        ):  # fmt: skip
            self._forget(node_id)
            node = None
        if node is None:
            node = self._add(node_id, row, options)
        if accepting and not node.accepting:
            node.readmission.begin(asyncio.get_running_loop().time())
        configured = (row["name"], options, row["weight"], accepting, _switches(row))
        changed = configured != (
            node.name, node.options, node.weight, node.accepting, node.switches,
        )  # fmt: skip
        node.name, node.options, node.weight, node.accepting, node.switches = configured
        if changed:
            self._fleet.announce_change()
        if row["age"] is not None and not self.is_prober:
            self._hear(node, Finding.read(row, asked_at))
        # Only what is new in the table: it may be read just before our own news is written.
        if row["circuit"] != self._circuits.get(node_id, Circuit.CLOSED.value):
            self._hear_circuit(node, row["circuit"])
        self._circuits[node_id] = row["circuit"]

    def _add(self, node_id: int, row: Row, options: NodeOptions) -> Node:
        dialect = dialect_for(row["dialect"], self._client, row["base_url"])
        node = Node(node_id, row["name"], row["base_url"], dialect, options)
        node.accepting = row["admin_state"] == "active"  # a new node has no way to come back
        self._fleet.nodes[node_id] = node
        self._hurry[node_id] = asyncio.Event()
        self._probes[node_id] = asyncio.create_task(
            self._probe_forever(node), name=f"probe {node.name}"
        )
        return node

    def _forget(self, node_id: int) -> None:
        node = self._fleet.nodes.pop(node_id)
        self._probes.pop(node_id).cancel()
        del self._hurry[node_id]
        self._found.pop(node_id, None)
        self._circuits.pop(node_id, None)
        self._client.drop_spares(node.base_url)
        node.accepting = False
        self._fleet.announce_change()

    async def _look_up_forever(self) -> None:
        while True:
            await self._addresses.wait(conf().dns_interval)
            if not self.is_prober:
                continue
            try:
                await self._addresses.refresh()
            except DATABASE_ERRORS as exc:
                logger.info("addresses cannot be stored: %s", exc)

    # Probing

    async def _probe_forever(self, node: Node) -> None:
        hurry = self._hurry[node.id]
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(conf().health_interval):
                    await hurry.wait()
            except TimeoutError:
                pass
            if hurry.is_set() or self.is_prober or self._is_old(node, loop.time()):
                hurry.clear()
                await self._probe(node)
            await self._keep_spares(node)

    def _is_old(self, node: Node, now: float) -> bool:
        """Whether nobody has told of the node for longer than a new prober takes to begin."""
        patience = LEASE_SECONDS + conf().health_interval + conf().health_timeout
        return node.health is Health.UNKNOWN or now - node.known_at > patience

    async def _probe(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        report, reason = None, ""
        try:
            async with asyncio.timeout(conf().health_timeout):
                report = await node.dialect.probe(conf().health_timeout)
        except TimeoutError:
            reason = "no answer in time"
            if node.health is Health.UP and node.last_data > at:
                # Too busy to answer us, yet its streams go on: nothing is proven.
                return
        except (AttemptFailed, RejectedByEngine) as exc:
            reason = str(exc)
        except Exception as exc:  # noqa: BLE001  a strange answer or address must not end the probing
            reason = f"not what a {node.dialect.name} server says: {exc!r}"
        if at <= node.known_at:  # a stream has failed meanwhile, or another process was faster
            return
        health = Health.DOWN if report is None else Health.UP
        finding = Finding(at=at, health=health, reason=reason, report=report)
        node.found_down_here = report is None
        self._believe(node, finding)
        if self.is_prober:
            message = {"type": "found", "from": self._instance_id, "node": node.id}
            self._broadcast({**message, "finding": finding.stored(loop.time())})

    def _believe(self, node: Node, finding: Finding) -> None:
        """Take over what is known of a node; the prober has it stored as well."""
        before = (node.health, node.models)
        node.known_at = finding.at
        if (report := finding.report) is not None:
            node.models, node.can, node.slots = report.models, report.can, report.slots
            node.note_figures(report.figures)
        if before != (finding.health, node.models):
            was = node.health
            self._fleet.mark(node, finding.health, finding.reason)
            if was is not finding.health:
                self._note_health(node, was, finding.reason, self._lease.holder)
        if node.health is Health.DOWN:
            self._client.drop_spares(node.base_url)
        if self.is_prober:
            self._found[node.id] = finding.stored(asyncio.get_running_loop().time())

    def _move_to_suspect(self, node: Node, reason: str, by: str) -> None:
        was = node.health
        node.known_at = asyncio.get_running_loop().time()
        self._fleet.mark(node, Health.SUSPECT, reason)
        self._note_health(node, was, reason, by)

    async def _keep_spares(self, node: Node) -> None:
        """As many connections as streams would come here at once if another node died."""
        if node.dialect.keeps_idle_connections and node.health is Health.UP:
            others = (n.in_flight for n in self._fleet.nodes.values() if n is not node)
            wanted = min(max(others, default=0), MOST_SPARES) if node.accepting else 0
            await self._client.keep_spares(node.base_url, wanted)

    # What is stored

    def _note_health(self, node: Node, was: Health, reason: str, by: str) -> None:
        """The prober notes for all; what others find out by themselves it finds out as well."""
        if self.is_prober:
            self._note(node, node.health.value, was=was.value, reason=reason, by=by)

    def _note(self, node: Node, kind: str, **data: str) -> None:
        data.setdefault("by", self._lease.holder)
        self._notes.append(NodeNote(node.id, node.name, kind, data))
        self._something_to_store.set()

    async def _store_forever(self) -> None:
        """At once what has changed, and the rest at the pace of the probes."""
        while True:
            try:
                async with asyncio.timeout(conf().health_interval):
                    await self._something_to_store.wait()
            except TimeoutError:
                pass
            self._something_to_store.clear()
            try:
                await self._store()
            except DATABASE_ERRORS as exc:
                logger.info("what was found of the nodes cannot be stored: %s", exc)

    async def _store(self) -> None:
        found, self._found = self._found, {}
        notes, self._notes = self._notes, []
        if found:
            await self._table.store(found, self._lease)
        if notes:
            await self._table.note(notes)


def _switches(row: Row) -> Switches:
    return Switches(row["failover"] == "on", row["hedging"] == "on", row["defragment"])
