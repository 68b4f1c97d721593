"""The queue of those who wait for a place on a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from streaming.core.nodes import NodeOptions
from streaming.fleet.continuations import Booking, Continuations
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.routing import Wanted

LIMIT = 2
CONTINUE = Wanted(model="m", is_continuation=True)
BEGIN = Wanted(model="m")
FOREVER = float("inf")


@pytest.fixture
def fleet(settings: Any) -> Fleet:
    settings.STREAMING = replace(settings.STREAMING, max_continuations=LIMIT)
    fleet = Fleet()
    add_node(fleet, 1)
    return fleet


@pytest.fixture
def queue(fleet: Fleet) -> Iterator[Continuations]:
    queue = Continuations(fleet)
    yield queue
    queue.stop()


def add_node(fleet: Fleet, number: int) -> Node:
    node = Node(
        number,
        f"n{number}",
        "",
        cast(Any, None),
        NodeOptions(),
        models={"m": None},
        health=Health.UP,
    )
    fleet.nodes[number] = node
    return node


async def wait(
    queue: Continuations,
    tenant: int = 1,
    since: float = 0.0,
    patience: float = FOREVER,
    wanted: Wanted = CONTINUE,
) -> asyncio.Task[Booking]:
    """Ask for a place; what waits for it is returned when it has got as far as it gets."""
    task = asyncio.create_task(queue.place(lambda: wanted, tenant, since, patience))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def filled(queue: Continuations, tenant: int = 1) -> list[Booking]:
    """The places there are, taken."""
    return [await (await wait(queue, tenant)) for _ in range(LIMIT)]


async def test_a_node_takes_no_more_at_once_than_the_limit(
    fleet: Fleet, queue: Continuations
) -> None:
    first, second = await filled(queue)
    third = await wait(queue)
    assert not third.done()
    assert queue.waiting == 1
    first.release()
    booking = await third
    assert fleet.nodes[1].continuing == LIMIT
    assert fleet.nodes[1].in_flight == 3  # a first token ends the wait, not the attempt
    for ended in (first, second, booking):
        ended.end()
    assert (fleet.nodes[1].continuing, fleet.nodes[1].in_flight) == (0, 0)


async def test_each_node_has_its_own_limit(fleet: Fleet, queue: Continuations) -> None:
    await filled(queue)
    waiting = await wait(queue)
    other = add_node(fleet, 2)
    fleet.announce_change()
    assert (await waiting).node is other


async def test_a_place_is_given_back_once(fleet: Fleet, queue: Continuations) -> None:
    first, _ = await filled(queue)
    waiting = [await wait(queue) for _ in range(2)]
    first.release()
    first.release()
    first.end()
    first.end()
    await waiting[0]
    await asyncio.sleep(0)
    assert not waiting[1].done()
    assert (fleet.nodes[1].continuing, fleet.nodes[1].in_flight) == (LIMIT, LIMIT)


async def test_the_longest_waiting_is_next(queue: Continuations) -> None:
    bookings = await filled(queue)
    waiting = {since: await wait(queue, since=since) for since in (3.0, 1.0, 2.0)}
    order = []
    for _ in range(3):
        bookings.pop().release()
        done, _ = await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        [since] = [since for since, task in waiting.items() if task in done]
        order.append(since)
        bookings.append(waiting.pop(since).result())
    assert order == [1.0, 2.0, 3.0]


async def test_no_tenant_is_served_before_one_with_fewer_under_way(queue: Continuations) -> None:
    """The big one came first with all it has; the small one waits for one place at most."""
    big = [await wait(queue, tenant=1, since=0.0) for _ in range(10)]
    small = [await wait(queue, tenant=2, since=9.0) for _ in range(3)]
    order = []
    under_way = [task.result() for task in big if task.done()]
    waiting = {task: "big" for task in big if not task.done()} | dict.fromkeys(small, "small")
    while waiting:
        under_way.pop(0).release()
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            order.append(waiting.pop(task))
            under_way.append(task.result())
    assert order[0] == "small"
    assert [at for at, who in enumerate(order) if who == "small"][-1] <= 2 * 3


async def test_who_leaves_the_queue_takes_no_place(fleet: Fleet, queue: Continuations) -> None:
    first, _ = await filled(queue)
    gone, stays = await wait(queue), await wait(queue)
    gone.cancel()
    await asyncio.wait({gone})
    assert queue.waiting == 1
    first.end()
    await stays
    assert fleet.nodes[1].in_flight == LIMIT


async def test_who_leaves_in_the_moment_of_being_placed_gives_it_on(
    fleet: Fleet, queue: Continuations
) -> None:
    first, _ = await filled(queue)
    gone, stays = await wait(queue), await wait(queue)
    first.end()  # places the one that is gone before it can hear of it
    gone.cancel()
    await asyncio.wait({gone})
    assert gone.cancelled()
    await stays
    assert (fleet.nodes[1].continuing, fleet.nodes[1].in_flight) == (LIMIT, LIMIT)


async def test_patience_is_for_want_of_a_node_only(fleet: Fleet, queue: Continuations) -> None:
    """However long a full node takes: it is there."""
    first, _ = await filled(queue)
    waiting = await wait(queue, patience=0.05)
    await asyncio.wait({waiting}, timeout=0.6)
    assert not waiting.done()
    first.end()
    assert (await waiting).node is fleet.nodes[1]


async def test_without_any_node_patience_ends(fleet: Fleet, queue: Continuations) -> None:
    await filled(queue)
    waiting = await wait(queue, patience=0.05)
    fleet.mark(fleet.nodes[1], Health.DOWN)
    with pytest.raises(TimeoutError):
        await waiting
    assert queue.waiting == 0


async def test_a_node_that_comes_back_begins_the_patience_anew(
    fleet: Fleet, queue: Continuations
) -> None:
    await filled(queue)
    node = fleet.nodes[1]
    waiting = await wait(queue, patience=0.6)
    for _ in range(3):
        fleet.mark(node, Health.DOWN)
        await asyncio.wait({waiting}, timeout=0.3)
        fleet.mark(node, Health.UP)
        await asyncio.wait({waiting}, timeout=0.3)
    assert not waiting.done()


@pytest.mark.parametrize(("gateways", "share"), [(1, 2), (2, 1), (5, 1)])
async def test_gateways_share_the_limit(
    fleet: Fleet, queue: Continuations, gateways: int, share: int
) -> None:
    fleet.gateways = gateways
    tasks = [await wait(queue) for _ in range(4)]
    assert [task.done() for task in tasks].count(True) == share


async def test_new_sessions_do_not_wait_for_continuations(
    fleet: Fleet, queue: Continuations
) -> None:
    """They have no prefix to compute again; the limit is not theirs."""
    await filled(queue)
    await wait(queue)
    new = await wait(queue, wanted=BEGIN)
    assert new.done()
    assert (await new).node is fleet.nodes[1]


async def test_new_sessions_that_wait_for_a_node_do_not_wait_for_continuations(
    fleet: Fleet, queue: Continuations
) -> None:
    fleet.mark(fleet.nodes[1], Health.DOWN)
    continuations = [await wait(queue) for _ in range(LIMIT + 1)]
    new = await wait(queue, since=1.0, wanted=BEGIN)
    assert not new.done()
    fleet.mark(fleet.nodes[1], Health.UP)
    await new
    assert [task.done() for task in continuations].count(True) == LIMIT


async def test_a_drained_node_takes_nobody(fleet: Fleet, queue: Continuations) -> None:
    first, _ = await filled(queue)
    waiting = await wait(queue)
    fleet.nodes[1].accepting = False
    first.end()
    await asyncio.sleep(0)
    assert not waiting.done()
    fleet.nodes[1].accepting = True
    fleet.announce_change()
    await waiting


async def test_whether_there_is_anywhere_else_to_go(fleet: Fleet, queue: Continuations) -> None:
    here = fleet.nodes[1]
    assert not queue.may_go_elsewhere("m", here)
    other = add_node(fleet, 2)
    assert queue.may_go_elsewhere("m", here)
    assert not queue.may_go_elsewhere("another", here)
    other.continuing = LIMIT
    assert not queue.may_go_elsewhere("m", here)
    other.continuing, other.health = 0, Health.DOWN
    assert not queue.may_go_elsewhere("m", here)
