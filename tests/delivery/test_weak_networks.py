"""A reader on a weak network hears from us more often. The network itself is made up here."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from streaming.consumers.answer_stream import AnswerStream
from streaming.consumers.heartbeat import KEEPALIVE
from streaming.core.levels import Level
from streaming.core.state import SessionState
from streaming.runtime import quality
from streaming.runtime.reader import Reader
from tests.durability.reader import until


class Network:
    """What the kernel says of a connection."""

    def __init__(self, rtt_us: int = 20_000) -> None:
        self.rtt_us = rtt_us
        self.rttvar_us = 0
        self.retransmitted_segments = 0
        self.segments_out = 100
        self.written = 0

    def taken(self) -> int:
        return 0

    def tcp_info(self) -> Network:
        return self


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
    monkeypatch.setattr(quality, "LOOK_SECONDS", 0.0)
    network, woken = Network(), asyncio.Queue[None]()

    async def pieces(push: object) -> AsyncGenerator[None]:
        while True:
            yield await woken.get()

    reader = Reader(0, 0.0, network)
    attachment = SimpleNamespace(
        reader=reader,
        pieces=pieces,
        state=SessionState.STREAMING,
        due_controls=list,
        note_health=lambda: None,
        gateway_is_draining=False,
    )
    writer = SimpleNamespace(protocol="sessions", opening=lambda: b"", quality=lambda told: b"")
    consumer: Any = Consumer()
    stream = AnswerStream(
        consumer,
        attachment,  # type: ignore[arg-type]
        writer,  # type: ignore[arg-type]
        headers=list,
        start_after=0,
        quality=quality.ConnectionQuality(network, Level.STANDARD),
    )
    task = asyncio.create_task(stream.run())
    woken.put_nowait(None)
    await asyncio.sleep(0.1)
    assert KEEPALIVE not in consumer.written
    network.rtt_us = 900_000
    for _ in range(5):  # one look alone proves little
        woken.put_nowait(None)
    await until(lambda: consumer.written.count(KEEPALIVE) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
