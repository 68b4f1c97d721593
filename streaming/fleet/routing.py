"""Which node gets the next attempt."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from streaming.fleet.nodes import Node

UNCACHED = 2.0
"""How much dearer a continuation is where its whole prefix has to be computed again."""
AFFINITY_FACTOR, AFFINITY_STREAMS = 1.25, 2
"""How much more than the least loaded node one may have and still be taken for its KV-cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an attempt needs of its node.

    ``failed``: the nodes on which this answer has failed, oldest first; one of them is taken only
    when there is no other, and then the one whose failure is longest ago. ``unfit``: nodes that
    can't take it at all. ``is_continuation``: there is an answer to go on with, whose prefix has to
    be computed again. ``prefix`` tells prompts with the same beginning, whose KV-cache a node may
    still have (``core.prefix.prefix_key``).
    """

    model: str
    failed: Sequence[Node] = ()
    unfit: Collection[Node] = ()
    is_continuation: bool = False
    prefix: int | None = None


def choose(nodes: Iterable[Node], wanted: Wanted, now: float) -> Node | None:
    """The best node of ``nodes``; None: wait for a change.

    A suspect counts as another until its probe has decided: going back to a node that failed at
    once would only fail again. A node whose circuit is open is better than none.
    """
    known = [
        node
        for node in nodes
        if node not in wanted.unfit and (node.switches.failover or not wanted.failed)
    ]
    able = [
        node
        for node in known
        if node.takes(wanted.model, now, is_continuation=wanted.is_continuation)
    ]
    undecided = [node for node in known if node.may_take_soon(wanted.model)]
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
    return None


def _best(nodes: Sequence[Node], wanted: Wanted, now: float) -> Node:
    if not wanted.is_continuation:
        for node in nodes:
            if node.breaker.takes_trial(now):
                return node
    costs = _costs(nodes, wanted.is_continuation, now)
    best = min(nodes, key=lambda node: (costs[node.id], node.rank, node.id))
    if wanted.prefix is None:
        return best
    affine = max(
        (node for node in nodes if node.can.prefix_caching),
        key=lambda node: _attraction(wanted.prefix or 0, node),
        default=best,
    )
    (full, cost), (best_full, best_cost) = costs[affine.id], costs[best.id]
    bound = best_cost * AFFINITY_FACTOR + AFFINITY_STREAMS * _per_stream(nodes, affine, now)
    return affine if full <= best_full and cost <= bound else best


def least_loaded(nodes: Collection[Node], now: float) -> Node:
    """The node with the fewest streams for its weight and capacity. Raises ``ValueError`` for none."""
    costs = _costs(nodes, False, now)
    return min(nodes, key=lambda node: (costs[node.id], node.rank, node.id))


def _costs(
    nodes: Collection[Node], is_continuation: bool, now: float
) -> dict[int, tuple[bool, float]]:
    """By node id: whether one more stream would have to queue, and how loaded it would be."""
    cached = any(node.can.prefix_caching for node in nodes)
    costs = {}
    for node in nodes:
        load = node.load(now) + 1
        cost = load * _per_stream(nodes, node, now)
        if is_continuation and cached and not node.can.prefix_caching:
            cost *= UNCACHED
        costs[node.id] = (node.capacity is not None and load > node.capacity, cost)
    return costs


def _per_stream(nodes: Collection[Node], node: Node, now: float) -> float:
    """What one stream costs: by capacity only where every node's is known."""
    if all(other.capacity for other in nodes):
        return 1.0 / (node.pull(now) * (node.capacity or 1))
    return 1.0 / node.pull(now)


def _attraction(prefix: int, node: Node) -> float:
    """Rendezvous hashing by weight: a node that comes or goes moves only its own prompts."""
    digest = hashlib.blake2b(
        prefix.to_bytes(8, "big") + node.id.to_bytes(8, "big"), digest_size=7
    ).digest()
    drawn = (int.from_bytes(digest, "big") + 1) / (2**56 + 1)  # above 0, below 1
    return -node.weight / math.log(drawn)
