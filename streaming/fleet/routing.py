"""Which node gets the next attempt."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streaming.fleet.nodes import Node

UNCACHED = 2.0
"""How much dearer a continuation is where its whole prefix has to be computed again."""
SLOW = 1.5
"""How many times the fastest node's time between tokens makes a node a slow one: its reader waits
already."""
AFFINITY_FACTOR, AFFINITY_STREAMS = 1.25, 2
"""How much more than the least loaded node one may have and still be taken for its KV-cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an attempt needs of its node.

    ``failed``: the nodes on which this answer has failed, oldest first; one of them is taken only
    when there is no other, and then the one whose failure is longest ago. ``unfit``: nodes that
    can't take it at all. ``is_continuation``: there is an answer to go on with, whose prefix has to
    be computed again. ``prefix`` tells prompts with the same beginning, whose KV-cache a node may
    still have (``core.prefix.prefix_key``). ``last_resort``: rather than to wait it goes to a node
    that is being emptied: an answer that has begun is finished.
    """

    model: str
    failed: Sequence[Node] = ()
    unfit: Collection[Node] = ()
    is_continuation: bool = False
    prefix: int | None = None
    last_resort: bool = False


def choose(
    nodes: Iterable[Node], wanted: Wanted, now: float, *, besides: Collection[Node] = ()
) -> Node | None:
    """The best node of ``nodes`` and none of ``besides``; None: wait for a change.

    A suspect counts as another while its probe is about to decide: going back to a node that failed
    at once would only fail again. A node whose circuit is open is better than none.
    """
    known = [
        node
        for node in nodes
        if node not in wanted.unfit
        and node not in besides
        and (node.switches.failover or not wanted.failed)
    ]
    able = [
        node
        for node in known
        if node.takes(wanted.model, now, is_continuation=wanted.is_continuation)
    ]
    undecided = [node for node in known if node.may_take_soon(wanted.model, now)]
    for start in range(len(wanted.failed) + 1):
        barred = wanted.failed[start:]
        if candidates := [node for node in able if node not in barred]:
            return _best(candidates, wanted, now)
        if any(node not in barred for node in undecided):
            return None
    for start in range(len(wanted.failed) + 1):
        barred = wanted.failed[start:]
        last_resort = [
            node
            for node in known
            if node not in barred
            and node.could_take(wanted.model, now, is_continuation=wanted.is_continuation)
        ]
        if last_resort:
            return least_loaded(last_resort, now)
    if wanted.last_resort:
        emptied = [
            node
            for node in known
            if node not in wanted.failed and node.takes_as_last_resort(wanted.model, now)
        ]
        if emptied:
            return least_loaded(emptied, now)
    return None


class _Cost(NamedTuple):
    """What one more stream costs on a node: less is better, one that would queue is worst.

    ``each``: by how much every stream more makes it dearer.
    """

    queues: bool
    cost: float
    rank: int
    node_id: int
    each: float
    node: Node


def _best(nodes: Sequence[Node], wanted: Wanted, now: float) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    if not wanted.is_continuation:
        for node in nodes:
            if node.breaker.takes_trial(now):
                return node
    costs = _costs(nodes, wanted.is_continuation, now)
    best = min(costs)
    if wanted.prefix is None:
        return best.node
    prefix = wanted.prefix.to_bytes(8, "big")
    affine = max(
        (cost for cost in costs if cost.node.can.prefix_caching),
        key=lambda cost: _attraction(prefix, cost.node),
        default=best,
    )
    bound = best.cost * AFFINITY_FACTOR + AFFINITY_STREAMS * best.each
    return (affine if affine.queues <= best.queues and affine.cost <= bound else best).node


def least_loaded(nodes: Collection[Node], now: float) -> Node:
    """The node with the fewest streams for its weight and capacity. Raises ``ValueError`` for none."""
    return min(_costs(nodes, False, now)).node


def _costs(nodes: Collection[Node], is_continuation: bool, now: float) -> list[_Cost]:
    cached = any(node.can.prefix_caching for node in nodes)
    fastest = min((node.interval for node in nodes if node.interval), default=0.0)
    capacities = [node.capacity for node in nodes]
    all_known = all(capacities)  # else streams cannot be weighed against capacities
    costs = []
    for node, capacity in zip(nodes, capacities, strict=True):
        load = node.load(now) + 1
        each = 1.0 / node.pull(now)
        if all_known:
            each /= capacity or 1
        if is_continuation and cached and not node.can.prefix_caching:
            each *= UNCACHED
        if is_continuation and fastest and node.interval > SLOW * fastest:
            each *= node.interval / fastest
        queues = capacity is not None and load > capacity
        costs.append(_Cost(queues, load * each, node.rank, node.id, each, node))
    return costs


def _attraction(prefix: bytes, node: Node) -> float:
    """Rendezvous hashing by weight: a node that comes or goes moves only its own prompts."""
    digest = hashlib.blake2b(prefix + node.id.to_bytes(8, "big"), digest_size=7).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**56 + 1)  # above 0, below 1
    return -node.weight / math.log(drawn)
