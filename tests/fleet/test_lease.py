"""One process at a time, by the database's clock."""

from __future__ import annotations

import asyncio

from streaming.fleet.lease import Lease
from tests.fleet.conftest import Workshop


async def test_one_of_many_gets_it_and_keeps_it(workshop: Workshop) -> None:
    leases = [Lease(workshop.pool, "probe", f"gateway {number}") for number in range(8)]
    for _ in range(3):
        won = await asyncio.gather(*(lease.claim() for lease in leases))
        assert sum(won) == 1
        leases.sort(key=lambda lease: not lease.is_held)  # the holder asks first: it renews
    assert [lease.is_held for lease in leases] == [True] + [False] * 7


async def test_it_is_anybodys_when_its_time_is_over(workshop: Workshop) -> None:
    first, second = (
        Lease(workshop.pool, "probe", name, seconds=0.2) for name in ("first", "second")
    )
    assert await first.claim()
    assert not await second.claim()
    async with asyncio.timeout(5):
        while not await second.claim():  # noqa: ASYNC110  the database's clock decides
            await asyncio.sleep(0.02)
    assert not first.is_held  # it never thinks so longer than the database does
    assert not await first.claim()


async def test_it_can_be_given_back(workshop: Workshop) -> None:
    first, second = (Lease(workshop.pool, "probe", name) for name in ("first", "second"))
    assert await first.claim()
    await second.release()  # not its to give
    assert not await second.claim()
    await first.release()
    assert not first.is_held
    assert await second.claim()


async def test_leases_have_names(workshop: Workshop) -> None:
    assert await Lease(workshop.pool, "probe", "one").claim()
    assert await Lease(workshop.pool, "other", "two").claim()
