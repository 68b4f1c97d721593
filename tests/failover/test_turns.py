"""Attempts begin a few at a time, and nobody holds up the others."""

from __future__ import annotations

import asyncio

import pytest

from streaming.runtime import turns
from streaming.runtime.turns import AT_ONCE, Turns
from tests.durability.reader import until


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that do not end by themselves."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 3600.0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("endless")
async def test_first_come_first_served() -> None:
    gate, begun, go_on = Turns(), [], asyncio.Event()

    async def begin(number: int) -> None:
        async with gate.next() as turn:
            begun.append(number)
            await go_on.wait()
            turn.end()
            turn.end()  # a second time is no second place

    tasks = [asyncio.create_task(begin(number)) for number in range(3 * AT_ONCE)]
    await settle()
    assert begun == list(range(AT_ONCE))
    go_on.set()
    await asyncio.gather(*tasks)
    assert begun == list(range(3 * AT_ONCE))
    assert gate._free._value == AT_ONCE


async def test_a_turn_ends_by_itself() -> None:
    gate, begun = Turns(), 0

    async def hang() -> None:
        nonlocal begun
        async with gate.next():
            begun += 1
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hang()) for _ in range(3 * AT_ONCE)]
    await until(lambda: begun == 3 * AT_ONCE)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gate._free._value == AT_ONCE


@pytest.mark.usefixtures("endless")
async def test_whoever_stops_waiting_takes_no_turn() -> None:
    gate, go_on = Turns(), asyncio.Event()

    async def begin() -> None:
        async with gate.next():
            await go_on.wait()

    tasks = [asyncio.create_task(begin()) for _ in range(AT_ONCE + 2)]
    await settle()
    tasks[-2].cancel()
    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[-2].cancelled()
    assert not tasks[-1].cancelled()
    assert gate._free._value == AT_ONCE
