"""How soon an answer goes back to a node on which it has failed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from streaming.core.nodes import NodeOptions
from streaming.fleet.continuations import Continuations
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.runtime.placement import LONGEST_REST, REST, Placement
from streaming.runtime.token_log import SessionLog
from tests.quality.readers import live_session


def placed_on(*names: str) -> tuple[Placement, list[Node]]:
    fleet = Fleet()
    dialect: Any = SimpleNamespace(unsupported=frozenset())
    for number, name in enumerate(names, 1):
        node = Node(number, name, "", dialect, NodeOptions(), health=Health.UP)
        node.models = {"m": None}
        fleet.nodes[number] = node
    session = live_session(SessionLog(uuid4(), 1, lambda log: None))
    return Placement(session, fleet, Continuations(fleet)), list(fleet.nodes.values())


async def seconds_to_place(placement: Placement) -> tuple[str, float]:
    """Where the next attempt goes, and after how long."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    booking = await placement.next(began, is_continuation=True)
    booking.end()
    return booking.node.name, loop.time() - began


@pytest.mark.parametrize(("failures", "least"), [(2, 2 * REST), (3, 4 * REST), (8, LONGEST_REST)])
async def test_it_rests_longer_each_time_where_there_is_no_other(
    failures: int, least: float
) -> None:
    placement, [only] = placed_on("only")
    for _ in range(failures):
        placement.note_failure(only)
    name, seconds = await seconds_to_place(placement)
    assert (name, seconds >= least - 0.01) == ("only", True)


async def test_after_one_failure_it_may_go_back_and_to_others_at_any_time() -> None:
    placement, [one, _] = placed_on("one", "other")
    placement.note_failure(one)
    placement.note_failure(one)
    name, seconds = await seconds_to_place(placement)
    assert (name, seconds < 2 * REST) == ("other", True)
    alone, [only] = placed_on("only")
    alone.note_failure(only)
    name, seconds = await seconds_to_place(alone)
    assert (name, seconds < 2 * REST) == ("only", True)
