"""What a connection waits with."""

from __future__ import annotations

import asyncio

import pytest

from gateway_project.server.inbox import Inbox
from gateway_project.server.transport import WriteGate


async def test_messages_come_in_order():
    inbox = Inbox()
    first = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    for number in range(3):
        inbox.put_nowait({"type": str(number)})
    assert [(await first)["type"], *[(await inbox.get())["type"] for _ in range(2)]] == [*"012"]


async def test_who_stops_waiting_takes_nothing_along():
    inbox = Inbox()
    gone, there = asyncio.create_task(inbox.get()), asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put_nowait({"type": "one"})
    gone.cancel()  # after it was woken
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (await there) == {"type": "one"}


async def test_a_gate_lets_everybody_through_once_it_opens():
    gate = WriteGate()
    await gate.wait()
    gate.pauseProducing()
    waiting = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    gate.resumeProducing()
    await asyncio.gather(*waiting)
    gate.stopProducing()
    gate.pauseProducing()
    assert gate.is_open  # nobody would open it any more
