"""Keep-alives: after silence only, at the pace asked for, never while a write waits."""

from __future__ import annotations

import asyncio
import time

from streaming.consumers.heartbeat import KEEPALIVE, PING, KeepAlive


class FakeStream:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.last_write = self.loop.time()
        self.writing = False
        self.written: list[bytes] = []
        self.wrote = asyncio.Event()

    async def write(self, data: bytes) -> None:
        self.last_write = self.loop.time()
        self.written.append(data)
        self.wrote.set()

    async def next_write(self) -> bytes:
        self.wrote.clear()
        await asyncio.wait_for(self.wrote.wait(), 2)
        return self.written[-1]


async def test_silence_is_broken_after_the_interval():
    stream = FakeStream()
    started = stream.loop.time()
    with KeepAlive(stream, 0.05):
        assert await stream.next_write() == KEEPALIVE
        assert stream.loop.time() - started >= 0.05
        assert await stream.next_write() == KEEPALIVE
        assert stream.loop.time() - started >= 0.1


async def test_a_write_puts_it_off():
    stream = FakeStream()
    with KeepAlive(stream, 0.1):
        for _ in range(10):
            await stream.write(b"data: token\n\n")
            await asyncio.sleep(0.02)
        assert KEEPALIVE not in stream.written


async def test_pace_changes_at_once():
    stream = FakeStream()
    with KeepAlive(stream, 60) as keep_alive:
        keep_alive.change(0.02, PING, now=True)
        assert await stream.next_write() == PING
        assert await stream.next_write() == PING
        keep_alive.change(60)
        count = len(stream.written)
        await asyncio.sleep(0.06)
        assert len(stream.written) == count


async def test_nothing_is_written_while_a_write_waits_and_no_cpu_is_burnt():
    stream = FakeStream()
    stream.writing = True
    with KeepAlive(stream, 0.02) as keep_alive:
        keep_alive.change(0.02, PING, now=True)
        before = time.process_time()
        await asyncio.sleep(0.2)
        assert stream.written == []
        assert time.process_time() - before < 0.05
        stream.writing = False
        assert await stream.next_write() == PING


async def test_it_ends():
    stream = FakeStream()
    with KeepAlive(stream, 0.01):
        pass
    await asyncio.sleep(0.03)
    assert stream.written == []


async def test_over_a_real_stream(server):
    body = (await server.get("/silent")).text
    events = body.split("\n\n")[:-1]
    assert set(events) == {":keepalive", ": ping"}
    assert events == sorted(events, reverse=True)  # the keep-alives, then the pings
    assert 2 <= events.count(":keepalive") <= 4
    assert 5 <= events.count(": ping") <= 11
