"""Readers that do not read cost kilobytes, and cost the others nothing."""

from __future__ import annotations

import asyncio
import time

import pytest
import websockets

from tests.server.harness import eventually

READERS = 200
# By messages that wait for room, and by pieces that are pushed while there is some.
WAYS = pytest.mark.parametrize("way", ["flood", "push"])


@WAYS
async def test_stuck_readers_hold_little_memory(own_server, record_property, way):
    server = own_server
    await server.state()
    before = server.resident
    stuck = [server.stuck_reader(f"/{way}") for _ in range(READERS)]
    await server.until("running", READERS)
    await settled(server)
    per_reader = (server.resident - before) / READERS
    record_property("bytes_per_reader", per_reader)
    print(f"{per_reader / 1024:.0f} KiB resident per stuck reader")
    assert per_reader < 200 * 1024

    # Somebody else's stream goes on at its pace.
    started = time.monotonic()
    assert (await server.get("/ticks/20/10")).text.endswith("data: [DONE]\n\n")
    assert time.monotonic() - started < 2

    for client in stuck:
        client.close()
    await server.until("running", 0)
    await server.until("connections", 1)


@WAYS
async def test_stream_goes_on_when_the_reader_reads_again(server, way):
    async with server.stream(f"/{way}") as (reader, _):
        await settled(server)
        async with asyncio.timeout(10):
            for _ in range(20):
                await reader.readexactly(2**20)


@WAYS
async def test_waiting_write_ends_with_the_connection(server, way):
    client = server.stuck_reader(f"/{way}")
    await server.until("running", 1)
    await settled(server)
    started = time.monotonic()
    client.close()
    await server.until("running", 0)
    assert time.monotonic() - started < 1


async def test_taken_tells_what_the_peer_has_acknowledged(server):
    """A stuck reader has taken what fits its receive buffer, and no more."""
    client = server.stuck_reader("/flood")
    await server.until("running", 1)
    await settled(server)
    await asyncio.to_thread(client.recv, 1)
    client.close()
    state = await server.until("running", 0)
    assert 0 < state["taken"] < state["written"]
    # What was written and not taken fits the two small buffers and one send.
    assert state["written"] - state["taken"] < 512 * 1024
    print(f"written {state['written']:.0f}, not taken {state['written'] - state['taken']:.0f}")


@WAYS
async def test_stuck_websocket_is_bounded_too(own_server, way):
    server = own_server
    await server.state()
    async with websockets.connect(f"ws://127.0.0.1:{server.port}/ws", max_queue=1) as socket:
        await socket.send(way)
        await server.until("running", 1)
        await settled(server)
        before = server.resident
        await settled(server)
        assert server.resident - before < 1024 * 1024
        for _ in range(20_000):  # 20 MB: it goes on
            assert len(await socket.recv()) == 1000
        socket.transport.abort()  # its closing handshake would wait behind the flood
    await server.until("running", 0)
    await server.until("connections", 1)


async def settled(server) -> None:
    """Wait until the server has nothing to do: its CPU time stands still over 100 ms."""

    async def idle() -> bool:
        before = server.cpu()
        await asyncio.sleep(0.1)
        return server.cpu() - before <= 0.01

    await eventually(idle, timeout=20)
