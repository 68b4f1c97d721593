"""The fleet as the node table has it: which nodes there are, and what operators want of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streaming.core.nodes import NodeOptions
from streaming.engines.http import EngineClient
from streaming.engines.registry import dialect_for
from streaming.fleet.node_table import Row, TableView
from streaming.fleet.nodes import Fleet, Node, Switches

logger = logging.getLogger(__name__)


class NodeRegistry:
    """Makes the nodes of ``fleet`` those of the table. ``added`` and ``removed`` are told of each."""

    def __init__(
        self,
        fleet: Fleet,
        client: EngineClient,
        instance_id: int,
        added: Callable[[Node], None],
        removed: Callable[[Node], None],
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._instance_id = instance_id
        self._added = added
        self._removed = removed

    def __repr__(self) -> str:
        return f"<NodeRegistry of {self._fleet!r}>"

    def follow(self, view: TableView) -> list[tuple[Node, Row]]:
        """Take over what has been read; the nodes that are configured well, with their rows."""
        rows = {row["id"]: row for row in view.nodes if not is_name(row)}
        for node_id in set(self._fleet.nodes) - set(rows):
            self._forget(node_id)
        followed = []
        for row in rows.values():
            try:
                followed.append((self._update(row), row))
            except (ValueError, KeyError, TypeError) as exc:
                # Somebody wrote past the model's validation; the other nodes are fine.
                logger.error("node %s is configured wrongly and is left out: %r", row["name"], exc)
        self._fleet.policies = {model: _switches(row) for model, row in view.policies.items()}
        self._fleet.gateways = 1 + len(view.others)
        nodes = sorted(self._fleet.nodes.values(), key=lambda node: node.id)
        for place, node in enumerate(nodes):
            node.rank = (place - (self._instance_id - 1)) % len(nodes)
            node.others_in_flight = sum(other.get(str(node.id), 0) for other in view.others)
        return followed

    def _update(self, row: Row) -> Node:
        options = NodeOptions.parse(row["options"])
        node = self._fleet.nodes.get(row["id"])
        host = row["parent_url"] or (node.host if node is not None else "")
        if node is not None and (node.base_url, node.dialect.name, node.host) != (
            row["base_url"], row["dialect"], host,
        ):  # fmt: skip
            self._forget(node.id)
            node = None
        accepting = row["admin_state"] == "active" and not is_leaving(row)
        if node is None:
            node = self._add(row, options, host, accepting)
        elif node.options != options:
            node.dialect = dialect_for(row["dialect"], self._client, row["base_url"], options)
        if accepting and not node.accepting:
            node.readmission.begin(asyncio.get_running_loop().time())
        configured = (row["name"], options, row["weight"], accepting, _switches(row))
        changed = configured != (
            node.name, node.options, node.weight, node.accepting, node.switches,
        )  # fmt: skip
        node.name, node.options, node.weight, node.accepting, node.switches = configured
        node.draining = row["admin_state"] == "draining"
        if changed:
            self._fleet.announce_change()
        return node

    def _add(self, row: Row, options: NodeOptions, host: str, accepting: bool) -> Node:
        dialect = dialect_for(row["dialect"], self._client, row["base_url"], options)
        node = Node(row["id"], row["name"], row["base_url"], dialect, options, host=host)
        node.accepting = accepting
        if host:
            self._client.names.remember(node.base_url, host)
        self._fleet.nodes[node.id] = node
        self._added(node)
        return node

    def _forget(self, node_id: int) -> None:
        node = self._fleet.nodes.pop(node_id)
        node.accepting = False
        self._removed(node)
        self._client.drop_spares(node.base_url)
        self._client.names.forget(node.base_url)
        self._fleet.announce_change()


def is_name(row: Row) -> bool:
    """Whether it stands for all addresses of its name and is no node itself."""
    return isinstance(row["options"], dict) and row["options"].get("dns") == "all"


def is_leaving(row: Row) -> bool:
    """Whether it is an address that its name has no more."""
    return row["source"] == "dns" and row["parent_id"] is None


def _switches(row: Row) -> Switches:
    return Switches(row["failover"] == "on", row["hedging"] == "on", row["defragment"])
