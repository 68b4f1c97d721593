"""Processes that accept from the same socket have about as many connections each."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gateway_project.server.shares import NOT_THERE, Shares, shared_memory
from tests.durability.reader import until
from tests.server import harness

CONNECTIONS = 200


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_memory(3)
    yield descriptor
    os.close(descriptor)


def test_who_is_ahead(memory: int) -> None:
    one, other = Shares(memory, 0), Shares(memory, 1)
    for _ in range(20):
        one.opened()
    assert one.is_ahead
    assert not other.is_ahead
    for _ in range(18):
        one.closed()
    assert not one.is_ahead  # two more are nothing


def test_nobody_waits_for_those_that_take_none(memory: int) -> None:
    one, other = Shares(memory, 0), Shares(memory, 1)  # the third has never come
    for _ in range(100):
        one.opened()
    other.leave()
    assert not one.is_ahead
    other.closed()
    other.opened()
    assert not one.is_ahead


def test_a_process_that_comes_again_begins_with_none(memory: int) -> None:
    one, other = Shares(memory, 0), Shares(memory, 1)
    for _ in range(10):
        one.opened()
        other.opened()
    assert not other.is_ahead
    Shares(memory, 0)
    assert other.is_ahead


def test_the_count_stays_a_count(memory: int) -> None:
    one = Shares(memory, 0)
    one.closed()
    one.opened()
    assert not one.is_ahead
    one.leave()
    one.closed()
    assert repr(one).count(str(NOT_THERE)) == 3


@pytest.mark.parametrize("pause", [0.0, 0.005])
async def test_two_processes_share(tmp_path: Path, pause: float) -> None:
    """At once, and one after the other, when the one that wakes first would take them all."""
    with ExitStack() as resources:
        listener = resources.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        port, shared, shares = listener.getsockname()[1], listener.fileno(), shared_memory(2)
        resources.callback(os.close, shares)
        pids = []
        for place in range(2):
            server = harness.start(
                tmp_path / f"log-{place}",
                *("--fd", str(shared), "--shares", f"{shares}:{place}"),
                fds=(shared, shares),
            )
            resources.callback(harness.stop, server)
            pids.append(server.process.pid)
        writers = []
        for _ in range(CONNECTIONS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            await asyncio.sleep(pause)

        def counts() -> Counter[int]:
            return Counter(
                pid
                for pid in pids
                for connection in psutil.Process(pid).net_connections("tcp")
                if connection.status == psutil.CONN_ESTABLISHED
            )

        await until(lambda: counts().total() == CONNECTIONS)
        assert min(counts().values()) >= 0.4 * CONNECTIONS, counts()
        for writer in writers:
            writer.close()
