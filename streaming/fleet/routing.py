"""Which node gets the next attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from streaming.fleet.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an attempt needs of its node.

    ``failed``: the nodes on which this answer has failed, oldest first; one of them is taken only
    when there is no other, and then the one whose failure is longest ago. ``unfit``: nodes that
    can't take it at all. ``is_continuation``: there is an answer to go on with, whose prefix has to
    be computed again. ``prefix`` tells prompts with the same beginning, whose KV-cache a node may
    still have.
    """

    model: str
    failed: Sequence[Node] = ()
    unfit: Collection[Node] = ()
    is_continuation: bool = False
    prefix: int | None = None


def choose(nodes: Iterable[Node], wanted: Wanted, now: float) -> Node | None:
    """The best node of ``nodes``; None: wait for a change.

    A suspect counts as another until its probe has decided: going back to a node that failed at
    once would only fail again.
    """
    known = [node for node in nodes if node not in wanted.unfit]
    able = [node for node in known if node.takes(wanted.model, now)]
    undecided = [node for node in known if node.may_take_soon(wanted.model)]
    for start in range(len(wanted.failed) + 1):
        candidates = [node for node in able if node not in wanted.failed[start:]]
        if candidates:
            return least_loaded(candidates)
        if any(node not in wanted.failed[start:] for node in undecided):
            return None
    return None


def least_loaded(nodes: Collection[Node]) -> Node | None:
    """The node with the fewest streams for its weight."""
    return min(nodes, key=lambda node: ((node.in_flight + 1) / node.weight, node.id), default=None)
