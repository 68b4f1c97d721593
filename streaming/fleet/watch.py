"""Keeps the fleet true: reads the node table, probes the nodes or hears from the process that does.

One process at a time probes all nodes: whoever holds the lease. It tells the others over the bus and
in the node table, so they work without Redis too. A node on which a stream has failed is looked at
at once by whoever noticed, and what nobody has told of for a while by everybody: neither a dead bus
nor a dead prober leaves anybody with old news.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core import log_fields
from streaming.engines.http import EngineClient
from streaming.fleet.breaker import Circuit
from streaming.fleet.chronicle import Chronicle
from streaming.fleet.dns import AddressBook, Resolve, system_resolve
from streaming.fleet.endless import endless
from streaming.fleet.findings import Finding
from streaming.fleet.lease import LEASE_SECONDS, RENEW_SECONDS, Lease
from streaming.fleet.node_table import NodeTable, Row
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.probe import probe
from streaming.fleet.registry import NodeRegistry, is_leaving, is_name

logger = logging.getLogger(__name__)


MOST_SPARES = 128
"""Connections that one process keeps ready at one node."""
READ_SECONDS = 1.0
SETTLED_SECONDS = 2.0
"""After an outage of the database every gateway looks dead until its next heartbeat."""
AGAIN_SECONDS = 0.25
"""From a probe that failed to the next one; twice that after each, up to ``HEALTH_INTERVAL``: many
nodes are away for a moment only, and a stopped one answers the probe that waits for it."""
FLOWING_SECONDS = 1.0
"""A node whose last data is younger than this works, whatever others say."""

NEWS = ("found", "suspect", "circuit")
"""The types of the messages that watches send each other."""
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
        self._registry = NodeRegistry(fleet, client, instance_id, self._begin, self._end)
        self._lease = Lease(pool, "probe", f"gateway {instance_id}")
        self._addresses = AddressBook(pool, resolve, self._lease.holder)
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._hurry: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._chronicle = Chronicle(self._table, self._lease)
        # As the table had them when it was last read, by node id.
        self._stored_health: dict[int, str] = {}
        self._stored_circuit: dict[int, str] = {}
        # When operators last wanted a probe and a reset of the circuit, by node id.
        self._orders: dict[int, tuple[datetime | None, datetime | None]] = {}
        self._something_drains = False
        self._prober_since = -math.inf
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
            asyncio.create_task(endless(work, name), name=name)
            for work, name in (
                (self._hold_lease, "probe lease"),
                (self._read_forever, "fleet table"),
                (self._chronicle.write_forever, "fleet chronicle"),
                (self._look_up_forever, "fleet names"),
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
        self._suspect(node, reason, is_news=node.health is Health.UP)

    def suspect_mute(self, node: Node, reason: str) -> None:
        """The same of a node whose streams have gone silent: it must generate a token to be good."""
        is_news = node.health is Health.UP or not node.is_mute
        node.is_mute = True
        self._suspect(node, reason, is_news)

    def _suspect(self, node: Node, reason: str, is_news: bool) -> None:
        if node.health is Health.UP:
            self._move_to_suspect(node, reason, self._lease.holder)
        if is_news:
            self._send("suspect", node, reason=reason, mute=node.is_mute)
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
        if message.get("from") == self._instance_id:
            return
        try:
            self._receive(message)
        except (KeyError, TypeError, ValueError) as exc:  # from another version of the gateway
            logger.info("news that cannot be read: %r", exc)

    def _receive(self, message: dict[str, Any]) -> None:
        node = self._fleet.nodes.get(message["node"])
        if node is None:
            return
        match message["type"]:
            case "found":
                now = asyncio.get_running_loop().time()
                self._hear(node, Finding.read(message["finding"], now))
            case "circuit":
                self._hear_circuit(node, message["state"])
            case "suspect" if self.is_prober or (message["mute"] and not self._flows(node)):
                # A frozen node keeps its probe waiting for seconds: nobody is to send it work so long.
                node.is_mute = node.is_mute or message["mute"]
                if node.health is Health.UP:
                    self._move_to_suspect(node, message["reason"], f"gateway {message['from']}")
                self._hurry[node.id].set()

    def _send(self, kind: str, node: Node, **data: Any) -> None:
        self._broadcast({"type": kind, "from": self._instance_id, "node": node.id, **data})

    def _hear(self, node: Node, finding: Finding) -> None:
        """Believe what another process has found, unless we know better: then look ourselves."""
        if finding.at <= node.known_at or finding.health is Health.SUSPECT:
            return
        now = asyncio.get_running_loop().time()
        if finding.health is Health.UP and node.health is Health.SUSPECT:
            return  # our own probe is under way
        if (finding.health is Health.UP and node.found_down_here) or (
            finding.health is Health.DOWN
            and node.health is Health.UP
            and now - node.last_data < FLOWING_SECONDS
        ):
            self._hurry[node.id].set()
        else:
            self._believe(node, finding)

    def _flows(self, node: Node) -> bool:
        """Whether this process has streams there that move."""
        now = asyncio.get_running_loop().time()
        return node.in_flight > 0 and now - node.last_data < FLOWING_SECONDS

    def _hear_circuit(self, node: Node, state: str) -> None:
        before = node.breaker.state
        now = asyncio.get_running_loop().time()
        node.breaker.hear(Circuit(state), now)
        if node.breaker.state is not before:
            if node.breaker.state is Circuit.CLOSED:
                node.readmission.begin(now)
            self._fleet.announce_change()

    def _circuit_moved(self, node: Node, before: Circuit, reason: str) -> None:
        """A circuit has moved in this process: the others follow. Trials are everybody's own."""
        state = node.breaker.state.value
        self._send("circuit", node, state=state)
        self._stored_circuit[node.id] = state  # or will be in a moment
        self._chronicle.circuit(node, node.breaker.state)
        self._chronicle.note(
            node, f"circuit_{state}", by=self._lease.holder, was=before.value, reason=reason
        )

    # The lease

    async def _hold_lease(self) -> None:
        while True:
            held = self._lease.is_held
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if await self._lease.claim() and not held:
                    self._prober_since = asyncio.get_running_loop().time()
                    logger.info("this process probes the nodes from now on")
                    for hurry in self._hurry.values():
                        hurry.set()
                    self._addresses.hurry()
            except DATABASE_ERRORS as exc:
                logger.info("the lease to probe cannot be had: %s", exc)

    def _has_probed_for(self, seconds: float) -> bool:
        return self.is_prober and asyncio.get_running_loop().time() - self._prober_since > seconds

    # The table

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(min(READ_SECONDS, conf().health_interval))
            try:
                await self._read_table()
                if self._something_drains and self._has_probed_for(SETTLED_SECONDS):
                    await self._table.settle_drains(self._lease.holder)
            except DATABASE_ERRORS as exc:
                logger.info("the node table cannot be read: %s", exc)

    async def _read_table(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        view = await self._table.read()
        for node, row in self._registry.follow(view):
            self._obey(node, row)
            try:
                self._read_finding(node, row, asked_at)
            except (ValueError, KeyError, TypeError) as exc:  # from another version of the gateway
                logger.info("what is stored of %s cannot be read: %r", node.name, exc)
        self._addresses.want([row for row in view.nodes if is_name(row)])
        self._something_drains = any(
            row["admin_state"] == "draining" or is_leaving(row) for row in view.nodes
        )
        self.read_at = view.read_at
        self._fleet.others_known_at = asked_at

    def _obey(self, node: Node, row: Row) -> None:
        """An operator may want a probe now, or a closed circuit."""
        wanted = (row["probe_asked_at"], row["circuit_reset_at"])
        former = self._orders.get(node.id, wanted)  # what was wanted before our time is done
        self._orders[node.id] = wanted
        if wanted[0] != former[0]:
            self._hurry[node.id].set()
        if wanted[1] != former[1] and (before := node.breaker.state) is not Circuit.CLOSED:
            node.breaker.close()
            node.readmission.begin(asyncio.get_running_loop().time())
            self._circuit_moved(node, before, "an operator has reset it")
            self._fleet.announce_change()

    def _read_finding(self, node: Node, row: Row, asked_at: float) -> None:
        """What others have stored. The prober knows better, once it has looked."""
        is_new = node.health is Health.UNKNOWN
        if row["age"] is not None and (is_new or not self.is_prober):
            finding = Finding.read(row, asked_at)
            if asked_at - finding.at < _patience():
                self._hear(node, finding)
        if not self._chronicle.knows_better(node, asked_at):
            # Only what is new: where it says the same as before, ours may have moved on by a hint.
            if row["circuit"] != self._stored_circuit.get(node.id, Circuit.CLOSED.value):
                self._hear_circuit(node, row["circuit"])
            self._stored_circuit[node.id] = row["circuit"]
        self._stored_health[node.id] = row["health"]

    def _begin(self, node: Node) -> None:
        """A node is new."""
        self._hurry[node.id] = asyncio.Event()
        if self._tasks:  # at the start all are probed
            self._hurry[node.id].set()
        name = f"probe {node.name}"
        self._probes[node.id] = asyncio.create_task(
            endless(lambda: self._probe_forever(node), name), name=name, context=log_fields.nobody()
        )

    def _end(self, node: Node) -> None:
        """A node is gone."""
        self._probes.pop(node.id).cancel()
        del self._hurry[node.id]
        self._stored_circuit.pop(node.id, None)
        self._orders.pop(node.id, None)

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
        again = AGAIN_SECONDS
        while True:
            pause = conf().health_interval
            if node.found_down_here:
                pause, again = min(pause, again), min(pause, 2 * again)
            else:
                again = AGAIN_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await hurry.wait()
            except TimeoutError:
                pass
            if hurry.is_set() or self.is_prober or self._is_old(node, loop.time()):
                hurry.clear()
                await self._probe(node)
            await self._keep_spares(node)

    def _is_old(self, node: Node, now: float) -> bool:
        """Whether nobody has told of the node for longer than a new prober takes to begin."""
        return node.health is Health.UNKNOWN or now - node.known_at > _patience()

    async def _probe(self, node: Node) -> None:
        finding = await probe(node)
        if finding.at <= node.suspected_at:  # a stream has failed meanwhile
            return
        was = node.health
        node.found_down_here = finding.health is Health.DOWN
        node.is_mute = node.is_mute and node.found_down_here
        self._believe(node, finding)
        self._tell(node, was, finding, self._lease.holder)

    def _believe(self, node: Node, finding: Finding) -> None:
        """Take over what is known of a node."""
        before = (node.health, node.models)
        node.known_at = max(node.known_at, finding.at)
        node.reason = finding.reason
        if (report := finding.report) is not None:
            node.models, node.can, node.slots = report.models, report.can, report.slots
            node.note_figures(report.figures)
        if before != (finding.health, node.models):
            self._fleet.mark(node, finding.health, finding.reason)
        if node.health is Health.DOWN:
            self._client.drop_spares(node.base_url)

    def _move_to_suspect(self, node: Node, reason: str, by: str) -> None:
        was, node.suspected_at = node.health, asyncio.get_running_loop().time()
        finding = Finding(at=node.suspected_at, health=Health.SUSPECT, reason=reason)
        self._believe(node, finding)
        self._tell(node, was, finding, by)

    def _tell(self, node: Node, was: Health, finding: Finding, by: str) -> None:
        """Only the prober does: what others find out by themselves it finds out as well."""
        if not self.is_prober:
            return
        self._chronicle.found(node, finding)
        self._send("found", node, finding=finding.stored(asyncio.get_running_loop().time()))
        former = self._stored_health.get(node.id) if was is Health.UNKNOWN else was.value
        if former != finding.health.value:
            health = finding.health.value
            self._chronicle.note(node, health, by=by, was=was.value, reason=finding.reason)

    async def _keep_spares(self, node: Node) -> None:
        """As many connections as streams would come here at once if another node died."""
        if node.dialect.keeps_idle_connections and node.health is Health.UP:
            others = (n.in_flight for n in self._fleet.nodes.values() if n is not node)
            wanted = min(max(others, default=0), MOST_SPARES) if node.accepting else 0
            await self._client.keep_spares(node.base_url, wanted)


def _patience() -> float:
    """How long what is known of a node stays good: until a new prober must have told of it."""
    return LEASE_SECONDS + conf().health_interval + conf().health_timeout
