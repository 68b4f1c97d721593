"""Who is continued first when a node has died: by level, and nobody waits for ever."""

from __future__ import annotations

import asyncio

from streaming.core.levels import Level
from streaming.fleet.continuations import RISE_SECONDS, Booking, Continuations
from tests.fleet.test_continuations import CONTINUE, FOREVER, filled, fleet, queue

__all__ = ["fleet", "queue"]

Waiting = dict[asyncio.Task[Booking], str]


async def ask(
    queue: Continuations, level: Level, *, tenant: int = 1, waited: float = 0.0
) -> asyncio.Task[Booking]:
    since = asyncio.get_running_loop().time() - waited
    place = queue.place(lambda: CONTINUE, tenant, since, FOREVER, level)
    task = asyncio.create_task(place)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def order_of(bookings: list[Booking], waiting: Waiting) -> list[str]:
    """Give one place back after the other; who gets them."""
    order = []
    while waiting:
        bookings.pop(0).release()
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            order.append(waiting.pop(task))
            bookings.append(task.result())
    return order


async def test_the_better_level_is_next(queue: Continuations) -> None:
    bookings = await filled(queue)
    waiting = {
        await ask(queue, Level.ECONOMY, waited=2.0): "economy",
        await ask(queue, Level.STANDARD, waited=1.0): "standard",
        await ask(queue, Level.REALTIME): "realtime",
    }
    assert await order_of(bookings, waiting) == ["realtime", "standard", "economy"]


async def test_within_a_level_tenants_take_turns(queue: Continuations) -> None:
    bookings = await filled(queue, tenant=1)
    waiting = {await ask(queue, Level.REALTIME, tenant=1, waited=3.0): "big" for _ in range(3)}
    waiting[await ask(queue, Level.REALTIME, tenant=2)] = "small"
    waiting[await ask(queue, Level.ECONOMY, tenant=3)] = "economy"
    order = await order_of(bookings, waiting)
    assert order[0] == "small"
    assert order[-1] == "economy"


async def test_who_waits_rises(queue: Continuations) -> None:
    bookings = await filled(queue)
    waiting = {
        await ask(queue, Level.REALTIME): "realtime",
        await ask(queue, Level.ECONOMY, waited=2 * RISE_SECONDS): "old economy",
        await ask(queue, Level.STANDARD, waited=RISE_SECONDS / 2): "standard",
    }
    assert await order_of(bookings, waiting) == ["old economy", "realtime", "standard"]
