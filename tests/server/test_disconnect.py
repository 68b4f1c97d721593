"""A client that leaves is noticed at once, and nothing of it stays."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_disconnect_is_seen_within_100_ms(server, how, record_property):
    before = await server.state()
    client = server.stuck_reader("/ticks/1000000/10")
    while b"data: 3\n\n" not in await asyncio.to_thread(client.recv, 4096):
        pass
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left_at = time.time()
    client.close()
    state = await server.until("left", before["left"] + 1)
    latency = state["left_at"] - left_at
    record_property("seconds", latency)
    print(f"disconnect by {how} seen after {latency * 1000:.1f} ms")
    assert latency < 0.1
    assert state["running"] == before["running"]


async def test_disconnect_of_a_silent_stream_is_seen_too(server):
    before = await server.state()
    async with server.stream("/ticks/2/3600000") as (reader, writer):
        await reader.readuntil(b"data: 0\n\n")
        left_at = time.time()
        writer.close()
        state = await server.until("left", before["left"] + 1)
    assert state["left_at"] - left_at < 0.1


async def test_nothing_stays_of_readers_that_left(server):
    async def come_and_go() -> None:
        async with server.stream("/ticks/1000000/10") as (reader, _):
            await reader.readuntil(b"data: 1\n\n")

    before = await server.state()
    await asyncio.gather(*(come_and_go() for _ in range(100)))
    await server.until("left", before["left"] + 100)
    after = await server.until("connections", 1)
    assert after["channels"] == 1
    assert after["tasks"] == before["tasks"]
    assert "Traceback" not in server.log


async def test_complete_answer_is_not_a_disconnect(server):
    before = await server.state()
    assert (await server.get("/ticks/2/1")).text.endswith("data: [DONE]\n\n")
    after = await server.until("ended", before["ended"] + 1)
    assert after["left"] == before["left"]


async def test_client_that_leaves_in_its_body(server):
    _, writer = await server.connect()
    writer.write(b"POST /echo/1 HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nhalf")
    await writer.drain()
    await server.until("channels", 2)
    writer.close()
    await server.until("channels", 1)
    await server.until("connections", 1)
