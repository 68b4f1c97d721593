"""A reader on a weak network hears from us more often. The network itself is made up here."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.consumers import answer_stream
from streaming.consumers.answer_stream import AnswerStream
from streaming.consumers.heartbeat import KEEPALIVE, interval
from streaming.core.state import SessionState
from streaming.runtime.reader import Reader
from tests.durability.reader import until


class Network:
    """What the kernel says of a connection."""

    def __init__(self, rtt_us: int = 20_000, retransmitted_segments: int = 0) -> None:
        self.rtt_us = rtt_us
        self.retransmitted_segments = retransmitted_segments
        self.written = 0

    def taken(self) -> int:
        return 0

    def tcp_info(self) -> Network:
        return self


@pytest.mark.parametrize(
    ("network", "is_weak"),
    [
        (Network(), False),
        (Network(rtt_us=300_000), False),
        (Network(rtt_us=301_000), True),
        (Network(retransmitted_segments=3), False),
        (Network(retransmitted_segments=4), True),
        (None, False),
    ],
)
def test_what_a_weak_network_is(network, is_weak):
    assert Reader(0, 0.0, network).is_weak is is_weak


def test_the_interval(settings):
    assert (interval(None, is_weak=False), interval(None, is_weak=True)) == (8.0, 3.0)
    assert interval(20.0, is_weak=True) == 20.0, "what the client asked for counts"


class Consumer:
    """Takes the bytes of a stream."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.last_write = 0.0
        self.writing = False

    async def start_stream(self, status: int, headers: Any) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.last_write = asyncio.get_running_loop().time()
        self.written.append(data)


async def test_a_network_that_grows_weak_is_noticed(settings, monkeypatch):
    settings.STREAMING = dataclasses.replace(
        settings.STREAMING, keepalive_seconds=60.0, keepalive_weak_seconds=0.02
    )
    monkeypatch.setattr(answer_stream, "NETWORK_SECONDS", 0.0)
    network, woken = Network(), asyncio.Queue[None]()

    async def pieces() -> AsyncGenerator[None]:
        while True:
            yield await woken.get()

    attachment = SimpleNamespace(
        reader=Reader(0, 0.0, network),
        pieces=pieces,
        state=SessionState.STREAMING,
        due_controls=list,
        gateway_is_draining=False,
    )
    writer = SimpleNamespace(opening=lambda: b"")
    consumer: Any = Consumer()
    stream = AnswerStream(
        consumer,
        attachment,  # type: ignore[arg-type]
        writer,  # type: ignore[arg-type]
        headers=list,
        start_after=0,
        heartbeat=None,
    )
    task = asyncio.create_task(stream.run())
    woken.put_nowait(None)
    await asyncio.sleep(0.1)
    assert KEEPALIVE not in consumer.written
    network.rtt_us = 400_000
    woken.put_nowait(None)
    await until(lambda: consumer.written.count(KEEPALIVE) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
