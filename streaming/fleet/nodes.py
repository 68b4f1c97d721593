"""The nodes as this process sees them."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from streaming.core.nodes import NodeOptions
from streaming.core.pace import Pace
from streaming.engines.base import Capabilities, Dialect, Figures

logger = logging.getLogger(__name__)


class Health(enum.Enum):
    UNKNOWN = "unknown"  # not probed yet
    UP = "up"
    SUSPECT = "suspect"  # a stream on it failed; the next probe decides
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Switches:
    """What operators have left on, for a node or a model. ``defragment``: on, off or dry_run."""

    failover: bool = True
    hedging: bool = True
    defragment: str = "on"


@dataclass(slots=True, eq=False)
class Node:
    """One engine node, as this process knows it."""

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
    """Attempts of this process that run here."""
    others_in_flight: int = 0
    """Attempts of the other gateway processes, as they last said."""
    can: Capabilities = field(default_factory=Capabilities)
    figures: Figures | None = None
    slots: int | None = None
    switches: Switches = Switches()
    continuing: int = 0
    """Continuations of this process that have no token yet (see ``fleet.continuations``)."""
    ttft: Pace = field(default_factory=Pace)
    """Its time to first token."""
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
        self.policies: dict[str, Switches] = {}
        """What operators have switched for whole models."""
        self.gateways = 1
        """How many gateway processes share the nodes."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.nodes.values())}>"

    def models(self) -> list[str]:
        """The models that can be asked for now: the union over healthy nodes."""
        return sorted({m for node in self._healthy() for m in node.models})

    def knows(self, model: str) -> bool:
        """Whether any node, healthy or not, was seen serving ``model``."""
        return any(model in node.models for node in self.nodes.values())

    def switches(self, model: str, node: Node) -> Switches:
        """What is left on for ``model`` on ``node``: off in one place is off."""
        policy = self.policies.get(model, Switches())
        order = ("on", "dry_run", "off")
        return Switches(
            failover=policy.failover and node.switches.failover,
            hedging=policy.hedging and node.switches.hedging,
            defragment=max(policy.defragment, node.switches.defragment, key=order.index),
        )

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
