"""Which node gets the next attempt."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from streaming.core.nodes import NodeOptions
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.routing import Wanted, choose

UP, SUSPECT, DOWN = Health.UP, Health.SUSPECT, Health.DOWN


def fleet_of(**health: Health) -> tuple[Fleet, dict[str, Node]]:
    fleet = Fleet()
    for number, (name, state) in enumerate(health.items(), 1):
        node = Node(number, name, "", cast(Any, None), NodeOptions(), health=state)
        node.models = {"m": None}
        fleet.nodes[number] = node
    return fleet, {node.name: node for node in fleet.nodes.values()}


@pytest.mark.parametrize(
    ("health", "failed", "chosen"),
    [
        ({"a": UP, "b": UP}, [], "a"),
        ({"a": UP, "b": UP}, ["a"], "b"),
        ({"a": UP, "b": DOWN}, ["a"], "a"),
        ({"a": UP, "b": SUSPECT}, [], "a"),
        # Others' failures made it suspect; its probe takes milliseconds.
        ({"a": UP, "b": SUSPECT}, ["a"], None),
        ({"a": UP, "b": SUSPECT}, ["b", "a"], None),
        ({"a": UP, "b": SUSPECT}, ["a", "b"], "a"),
        ({"a": UP, "b": UP}, ["a", "b"], "a"),
        ({"a": UP, "b": UP}, ["a", "b", "a"], "b"),
        ({"a": SUSPECT, "b": DOWN}, ["a"], None),
        ({"a": DOWN, "b": DOWN}, [], None),
    ],
)
async def test_choice(health: dict[str, Health], failed: list[str], chosen: str | None) -> None:
    fleet, nodes = fleet_of(**health)
    now = asyncio.get_running_loop().time()
    for suspect in nodes.values():
        suspect.suspected_at = now
    node = choose(
        fleet.nodes.values(),
        Wanted(model="m", failed=[nodes[name] for name in failed]),
        now,
    )
    assert (node.name if node else None) == chosen
