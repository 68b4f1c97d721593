"""The end of a process: streams finish or are told, cleanups run, the exit code says 0."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest
import websockets

from tests.server import harness

STREAMS = 20


async def ended(server, timeout: float = 10) -> int:
    return await asyncio.to_thread(server.process.wait, timeout)


async def read_all(reader) -> bytes:
    return await asyncio.wait_for(reader.read(-1), 15)


@contextlib.asynccontextmanager
async def streams(server, path):
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(server.stream(path)) for _ in range(STREAMS)]
        yield [reader for reader, _ in opened]


async def test_streams_that_fit_the_grace_finish(own_server):
    async with streams(own_server, "/ticks/10/100") as readers:
        own_server.process.send_signal(signal.SIGTERM)
        bodies = await asyncio.gather(*map(read_all, readers))
    assert all(body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for body in bodies)
    assert await ended(own_server) == 0


async def test_longer_streams_get_a_final_event_and_their_cleanup(tmp_path):
    server = harness.start(tmp_path / "log", SHUTDOWN_GRACE="0.3")
    try:
        async with streams(server, "/cleanup") as readers:
            await server.until("running", STREAMS)
            server.process.send_signal(signal.SIGTERM)
            bodies = await asyncio.gather(*map(read_all, readers))
        assert await ended(server) == 0
        assert all(b'"code":"shutting_down"' in body for body in bodies)
        assert all(body.endswith(b"0\r\n\r\n") for body in bodies)
        assert server.log.count("cleanup done") == STREAMS
        assert "Traceback" not in server.log
    finally:
        harness.stop(server)


async def test_shutdown_does_not_cut_off_the_work_after_a_disconnect(tmp_path):
    server = harness.start(tmp_path / "log", SHUTDOWN_GRACE="0")
    try:
        async with server.stream("/cleanup"):
            await server.until("running", 1)
        await harness.eventually(lambda: log_says(server, "client left"))
        server.process.send_signal(signal.SIGTERM)
        assert await ended(server) == 0
        assert "hook done" in server.log
    finally:
        harness.stop(server)


async def test_new_connections_are_refused_while_it_stops(own_server):
    async with own_server.stream("/ticks/5/200") as (reader, _):
        own_server.process.send_signal(signal.SIGTERM)

        async def refused() -> bool:
            try:
                _, writer = await own_server.connect()
            except OSError:
                return True
            writer.close()
            return False

        await harness.eventually(refused)
        assert (await read_all(reader)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_idle_keep_alive_connections_do_not_hold_it(own_server):
    reader, writer = await own_server.connect()
    writer.write(b"GET /echo/1 HTTP/1.1\r\nHost: test\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    started = time.monotonic()
    own_server.process.send_signal(signal.SIGTERM)
    assert await ended(own_server) == 0
    assert time.monotonic() - started < 1.5
    writer.close()


async def test_stuck_reader_does_not_hold_it(tmp_path):
    server = harness.start(tmp_path / "log", SHUTDOWN_GRACE="0.2")
    try:
        with server.stuck_reader("/flood"):
            await server.until("running", 1)
            server.process.send_signal(signal.SIGTERM)
            assert await ended(server) == 0
    finally:
        harness.stop(server)


async def test_websockets_are_told_to_come_back(tmp_path):
    server = harness.start(tmp_path / "log", SHUTDOWN_GRACE="0.2")
    try:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/ws") as socket_:
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket_.recv()
        assert closed.value.rcvd.code == 1012
        assert await ended(server) == 0
    finally:
        harness.stop(server)


async def test_second_signal_ends_at_once(own_server):
    async with own_server.stream("/ticks/1000/1000"):
        own_server.process.send_signal(signal.SIGTERM)
        await harness.eventually(lambda: log_says(own_server, "stopping"))
        own_server.process.send_signal(signal.SIGTERM)
        assert await ended(own_server, 1) == 128 + signal.SIGTERM


async def log_says(server, text: str) -> bool:
    return text in server.log


async def test_two_processes_share_a_listening_socket(tmp_path):
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        servers = [
            harness.start(
                tmp_path / f"log{n}", "--fd", str(listener.fileno()), fds=(listener.fileno(),)
            )
            for n in range(2)
        ]
        try:
            responses = await asyncio.gather(*(servers[0].get("/echo/1") for _ in range(50)))
            assert all(response.status_code == 200 for response in responses)
            # One ends; the socket lives on in the other.
            servers[0].process.send_signal(signal.SIGTERM)
            assert await ended(servers[0]) == 0
            assert (await servers[1].get("/echo/1")).status_code == 200
            assert "Traceback" not in servers[0].log + servers[1].log
        finally:
            for server in servers:
                harness.stop(server)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
async def test_it_ends_with_its_parent(tmp_path):
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE
    )
    port = int((await asyncio.to_thread(parent.stdout.readline)).split()[0])
    parent.kill()
    parent.wait()
    parent.stdout.close()

    async def refused() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return True
        writer.close()
        return False

    await harness.eventually(refused)


PARENT = """
import pathlib, sys, time
from tests.server import harness
print(harness.start(pathlib.Path(sys.argv[1])).port, flush=True)
time.sleep(60)
"""
