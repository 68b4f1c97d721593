"""The nodes as this process sees them, and the choice between them."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from streaming.core.nodes import NodeOptions
from streaming.engines.base import Dialect

logger = logging.getLogger(__name__)


class Health(enum.Enum):
    UNKNOWN = "unknown"  # not probed yet
    UP = "up"
    SUSPECT = "suspect"  # a stream on it failed; the next probe decides
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Node:
    """One engine node. ``in_flight`` counts this process's own streams on it."""

    id: int
    name: str
    base_url: str
    dialect: Dialect
    options: NodeOptions
    weight: float = 1.0
    accepting: bool = True
    """Whether the operator lets it take new work (not draining)."""
    health: Health = Health.UNKNOWN
    reason: str = ""
    models: dict[str, int | None] = field(default_factory=dict)
    in_flight: int = 0
    blocked_until: float = 0.0
    """Loop time before which it wants no requests (its ``Retry-After``)."""

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.health.value}: {self.in_flight} streams>"

    def takes(self, model: str, now: float) -> bool:
        """Whether a new attempt for ``model`` may go here."""
        return (
            self.accepting
            and self.health is Health.UP
            and model in self.models
            and now >= self.blocked_until
        )

    def may_take_soon(self, model: str) -> bool:
        """Whether only its next probe, which is under way, stands between it and ``model``."""
        return self.accepting and self.health is Health.SUSPECT and model in self.models


class Fleet:
    """All nodes. Changes wake those who wait for a node."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.nodes.values())}>"

    def models(self) -> list[str]:
        """The models that can be asked for now: the union over healthy nodes."""
        return sorted({m for node in self._healthy() for m in node.models})

    def knows(self, model: str) -> bool:
        """Whether any node, healthy or not, was seen serving ``model``."""
        return any(model in node.models for node in self.nodes.values())

    def choose(self, model: str, failed: Sequence[Node] = ()) -> Node | None:
        """The least loaded node for ``model``; None: wait for a change.

        ``failed``: the nodes on which this answer has failed, oldest first; one of them is taken
        only when there is no other, and then the one whose failure is longest ago. A suspect
        counts as another until its probe has decided: going back at once would only fail again.
        """
        now = asyncio.get_running_loop().time()
        able = [node for node in self.nodes.values() if node.takes(model, now)]
        undecided = [node for node in self.nodes.values() if node.may_take_soon(model)]
        for start in range(len(failed) + 1):
            candidates = [node for node in able if node not in failed[start:]]
            if candidates:
                return least_loaded(candidates)
            if any(node not in failed[start:] for node in undecided):
                return None
        return None

    async def wait_for_change(self) -> None:
        """Return when a node's health, models or acceptance has changed."""
        await self._changed.wait()

    def mark(self, node: Node, health: Health, reason: str = "") -> None:
        """Note what was observed of a node."""
        if node.health is not health:
            logger.info("node %s: %s → %s %s", node.name, node.health.value, health.value, reason)
        node.health = health
        node.reason = reason
        self.announce_change()

    def announce_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _healthy(self) -> Iterable[Node]:
        return (node for node in self.nodes.values() if node.health is Health.UP)


def least_loaded(nodes: Collection[Node]) -> Node | None:
    """The node with the fewest streams for its weight."""
    return min(nodes, key=lambda node: ((node.in_flight + 1) / node.weight, node.id), default=None)
