"""The nodes as this process sees them."""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from streaming.conf import conf
from streaming.core.failures import Cause
from streaming.core.first_token import FirstToken
from streaming.core.nodes import NodeOptions
from streaming.core.pace import Leniency
from streaming.engines.base import Capabilities, Dialect, Figures
from streaming.fleet.breaker import Breaker, Circuit, Readmission

logger = logging.getLogger(__name__)

FIGURES_SECONDS = 5.0
"""Figures older than this say nothing of now."""
KV_HYSTERESIS = 0.05
"""How far below the high-water mark the KV-cache must fall before new sessions are taken again."""
PROBE_SECONDS = 0.1
"""How long an answer that was broken off waits for the probe of a suspect rather than go where it
has failed before."""
LONGEST_BLOCK = 60.0
"""The most that a node's ``Retry-After`` is believed, in seconds."""

NOT_THE_NODES = frozenset({Cause.BUSY, Cause.REHEARSAL, Cause.MIGRATED})
"""Ends of attempts that say nothing against the node."""


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


def _breaker() -> Breaker:
    return Breaker(conf().circuit_failures, conf().circuit_pause)


@dataclass(slots=True, eq=False)
class Node:
    """One engine node, as this process knows it. Times are loop times."""

    id: int
    name: str
    base_url: str
    dialect: Dialect
    options: NodeOptions
    weight: float = 1.0
    accepting: bool = True
    """Whether the operator lets it take new work (not draining)."""
    draining: bool = False
    """Whether it is being emptied, and not empty yet."""
    health: Health = Health.UNKNOWN
    reason: str = ""
    models: dict[str, int | None] = field(default_factory=dict)
    in_flight: int = 0
    """Attempts of this process that run here."""
    others_in_flight: int = 0
    """Attempts of the other gateway processes, as they last said."""
    strangers: int = 0
    """Requests of clients that are none of ours, on a node that is shared."""
    can: Capabilities = field(default_factory=Capabilities)
    figures: Figures | None = None
    slots: int | None = None
    switches: Switches = Switches()
    continuing: int = 0
    """Continuations of this process that have no token yet (see ``fleet.continuations``)."""
    last_data: float = -math.inf
    """When an attempt of this process last got data from here; at most a tick of suspicion late."""
    interval: float = 0.0
    """Mean of its streams' times between two reads in this moment, in seconds; 0: it has none."""
    usual_interval: float = 0.0
    """The same, silences that still last left out, as it was last known."""
    first_token: FirstToken = field(default_factory=FirstToken)
    """Its times to first token."""
    leniency: Leniency = field(default_factory=Leniency)
    """How much longer than usual all its streams may be silent."""
    breaker: Breaker = field(default_factory=_breaker)
    readmission: Readmission = field(default_factory=Readmission)
    rank: int = 0
    """Which of equally loaded nodes is first; in each process another."""
    blocked_until: float = 0.0
    """Time before which it wants no requests (its ``Retry-After``)."""
    host: str = ""
    """The URL by whose name its address was found, if it is one of several."""
    is_mute: bool = False
    """Whether it was silent so long that a probe must have it generate a token to be good."""
    known_at: float = -math.inf
    """Time of what its health is known from: when a probe began, or a stream failed."""
    suspected_at: float = -math.inf
    """When a stream on it failed for the last time in a way that is the node's."""
    found_down_here: bool = False
    """Whether a probe of this very process got no answer."""
    _kv_is_high: bool = False

    def __repr__(self) -> str:
        return (
            f"<Node {self.name} {self.health.value}, circuit {self.breaker.state.value}:"
            f" {self.in_flight} streams>"
        )

    @property
    def capacity(self) -> int | None:
        """The streams it runs at once; more would queue. None: not known."""
        return int(self.options.capacity) if self.options.capacity else self.slots

    def could_take(self, model: str, now: float, *, is_continuation: bool = False) -> bool:
        """Whether a new attempt may go here if there is no better node: whatever its circuit says."""
        return (
            self.accepting
            and self.health is Health.UP
            and model in self.models
            and now >= self.blocked_until
            and (is_continuation or not self.is_full(now))
        )

    def takes(self, model: str, now: float, *, is_continuation: bool = False) -> bool:
        """Whether a new attempt for ``model`` may go here.

        While its circuit is not closed only the one that tries may; a continuation never tries.
        """
        return self.could_take(model, now, is_continuation=is_continuation) and (
            self.breaker.state is Circuit.CLOSED
            or (not is_continuation and self.breaker.takes_trial(now))
        )

    def takes_as_last_resort(self, model: str, now: float) -> bool:
        """Whether an answer may be finished here although the node is to be emptied."""
        return (
            self.draining
            and self.health is Health.UP
            and model in self.models
            and now >= self.blocked_until
        )

    def may_take_soon(self, model: str, now: float) -> bool:
        """Whether only its next probe, which is under way, stands between it and ``model``.

        A node that is well answers it in a few milliseconds; nobody waits for the others.
        """
        return (
            self.accepting
            and self.health is Health.SUSPECT
            and not self.is_mute
            and now - self.suspected_at < PROBE_SECONDS
            and model in self.models
        )

    def is_full(self, now: float) -> bool:
        """Whether its KV-cache has no room for new sessions: the next step would be preemption.

        What is occupied while nothing runs is only kept, and makes way.
        """
        if not self._kv_is_high or (figures := self.fresh_figures(now)) is None:
            return False
        return bool(self.in_flight or self.others_in_flight or figures.running)

    def fresh_figures(self, now: float) -> Figures | None:
        """What the engine said of its load, unless that is too long ago."""
        figures = self.figures
        return figures if figures and now - figures.asked_at < FIGURES_SECONDS else None

    def note_figures(self, figures: Figures | None) -> None:
        """The engine has said how it is loaded."""
        self.figures = figures
        if figures is None:
            self._kv_is_high, self.strangers = False, 0
            return
        high = conf().kv_high_water
        if figures.kv_usage is not None:
            self._kv_is_high = figures.kv_usage >= high - self._kv_is_high * KV_HYSTERESIS
        if self.options.exclusive == "off":
            asked = (figures.running or 0) + (figures.waiting or 0)
            self.strangers = max(0, asked - self.in_flight - self.others_in_flight)
        else:
            self.strangers = 0

    def load(self, now: float) -> int:
        """Attempts of all gateways and requests of strangers; those that queue count twice."""
        figures = self.fresh_figures(now)
        queued = (figures.waiting or 0) if figures else 0
        return self.in_flight + self.others_in_flight + self.strangers + queued

    def would_queue(self, now: float) -> bool:
        """Whether one more request would wait before the engine begins with it."""
        figures = self.fresh_figures(now)
        if figures is not None and figures.waiting:
            return True
        return self.capacity is not None and self.load(now) >= self.capacity

    def pull(self, now: float) -> float:
        """How many streams it is to have against others: its weight, less while it returns."""
        return self.weight * self.readmission.share(now)


class Fleet:
    """All nodes. Changes wake those who wait for a node."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.policies: dict[str, Switches] = {}
        """What operators have switched for whole models."""
        self.gateways = 1
        """How many gateway processes share the nodes."""
        self.others_known_at = -math.inf
        """When it was last asked what other processes run (loop time): who had died by then runs nothing."""
        self.circuit_moved: Callable[[Node, Circuit, str], None] = lambda *_: None
        """Told of a circuit that has moved in this process: the node, where from, and why."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.nodes.values())}>"

    def models(self) -> list[str]:
        """The models that can be asked for now: the union over healthy nodes."""
        return sorted({m for node in self._healthy() for m in node.models})

    def takes_work(self) -> bool:
        """Whether any healthy node may have new work."""
        return any(node.accepting for node in self._healthy())

    def knows(self, model: str) -> bool:
        """Whether any node, healthy or not, was seen serving ``model``."""
        return any(model in node.models for node in self.nodes.values())

    def switches(self, model: str, node: Node) -> Switches:
        """What is left on for ``model`` on ``node``: off in one place is off.

        A hedge is a continuation elsewhere, so without failover there is none.
        """
        policy = self.policies.get(model, Switches())
        order = ("on", "dry_run", "off")
        failover = policy.failover and node.switches.failover
        return Switches(
            failover=failover,
            hedging=failover and policy.hedging and node.switches.hedging,
            defragment=max(policy.defragment, node.switches.defragment, key=order.index),
        )

    # What the runner tells. Each attempt that began ends once, whatever comes in between.

    def attempt_began(self, node: Node) -> None:
        """An attempt goes to ``node``: say so as soon as it is chosen, before anything is awaited.

        Otherwise many would choose the same node at once, and a drained one would not know.
        """
        node.in_flight += 1
        before = node.breaker.state
        node.breaker.began(_now())
        self._note_circuit(node, before, "one attempt is to find out whether it works again")

    def attempt_succeeded(self, node: Node) -> None:
        """It got its first token."""
        before = node.breaker.state
        node.breaker.succeeded(_now())
        node.readmission.succeeded()
        self._note_circuit(node, before, "an attempt got its first token")

    def attempt_failed(self, node: Node, cause: Cause, retry_after: float | None = None) -> None:
        """It failed with ``AttemptFailed``; never to be called for ``RejectedByEngine``."""
        now, before = _now(), node.breaker.state
        if cause is Cause.BUSY:
            node.blocked_until = now + min(retry_after or 1.0, LONGEST_BLOCK)
        regenerates = node.options.continuation == "regenerate"
        # An answer that came out differently when asked again says nothing against the node.
        if cause in NOT_THE_NODES or (cause is Cause.MISMATCH and regenerates):
            node.breaker.undecided(now)
        else:
            node.breaker.failed(now)
        self._note_circuit(node, before, f"attempts fail: {cause.value}")

    def attempt_ended(self, node: Node) -> None:
        """It is over, in whatever way."""
        node.in_flight -= 1

    def _note_circuit(self, node: Node, before: Circuit, reason: str) -> None:
        after = node.breaker.state
        if after is before:
            return
        logger.info("circuit of %s: %s → %s: %s", node.name, before.value, after.value, reason)
        if after is Circuit.CLOSED:
            node.readmission.begin(_now())
        self.circuit_moved(node, before, reason)
        self.announce_change()

    # What is observed

    async def wait_for_change(self) -> None:
        """Return when a node's health, models or acceptance has changed."""
        await self._changed.wait()

    def mark(self, node: Node, health: Health, reason: str = "") -> None:
        """Note what was observed of a node."""
        if node.health is not health:
            logger.info("node %s: %s → %s %s", node.name, node.health.value, health.value, reason)
        if (node.health, health) == (Health.DOWN, Health.UP):
            now = _now()
            node.readmission.begin(now)
            node.breaker.returned(now)
        node.health = health
        node.reason = reason
        self.announce_change()

    def announce_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _healthy(self) -> Iterable[Node]:
        return (node for node in self.nodes.values() if node.health is Health.UP)


def _now() -> float:
    return asyncio.get_running_loop().time()
