"""After many streams with faults and leaving clients nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest

from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

# Connections to engines are kept for the next attempt, those to PostgreSQL are pooled.
POOLED = 64


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def status(pid: int, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize(
    ("streams", "rss_growth"),
    [(1000, 40_000), pytest.param(10_000, 60_000, marks=pytest.mark.soak)],
)
async def test_nothing_is_left(start_stack, streams: int, rss_growth: int) -> None:
    with (
        SimulatorProcess("vllm", pace=400) as first,
        SimulatorProcess("llamacpp", pace=400) as other,
    ):
        stack: Stack = start_stack(
            engine_nodes=[f"a=vllm+{first.url}", f"b=llamacpp+{other.url}"],
            env={"HEALTH_INTERVAL": "0.2"},
        )
        pid, key = stack.gateway().pid, stack.api_key()
        await _run(stack, key, 200, (first, other))
        # There is no worker here: the gateway settles by itself, for which it has threads from then on.
        await until(lambda: stack.sql("SELECT count(*) FROM billing_settlement")[0][0] > 0, 30)
        files, threads, memory = open_files(pid), status(pid, "Threads"), status(pid, "VmRSS")
        unfinished = await _run(stack, key, streams, (first, other))
        assert unfinished == 0
        for engine in (first, other):
            await until(lambda: engine.stats()["running"] == 0)  # noqa: B023
        await until(lambda: _open_sessions(stack) == 0)
        await until(lambda: open_files(pid) <= files + POOLED, 5)
        assert status(pid, "Threads") <= threads + 2
        assert status(pid, "VmRSS") - memory < rss_growth
        states = dict(stack.sql("SELECT state, count(*) FROM streaming_streamsession GROUP BY 1"))
        assert states.keys() <= {"completed", "cancelled"}
        assert "never retrieved" not in stack.gateway().log
        assert "Traceback" not in stack.gateway().log
        # Each waits 30 s at the most on the pooled connections; the sockets of clients are gone.
        assert _client_sockets(stack) == 0


async def _run(
    stack: Stack, key: str, count: int, engines: tuple[SimulatorProcess, SimulatorProcess]
) -> int:
    """``count`` streams, 50 at a time: a third meets a fault, a third of the clients leaves."""
    chance, width = random.Random(5), asyncio.Semaphore(50)
    first, other = engines  # a word strikes on one of them, so that the other can go on
    for engine, kind, at in (
        (first, "reset", 5), (first, "error_done", 3), (other, "truncated", 9), (other, "malformed", 12),
    ):  # fmt: skip
        engine.set_fault(kind=kind, at_token=at, times=-1, match=f"strike {kind}")

    async with Readers(stack.gateway().url, key) as readers:

        async def one(number: int) -> bool:
            kind = chance.choice(["reset", "truncated", "error_done", "malformed"])
            word = f"strike {kind}" if chance.random() < 0.34 and number % 3 else "calm"
            leave_after = chance.randint(1, 8) if number % 3 == 0 else None
            async with width:
                seen = await readers.ask(
                    question(f"{word} {number}", 25, "plain"), leave_after=leave_after
                )
            return leave_after is not None or seen.is_whole

        results = await asyncio.gather(*(one(number) for number in range(count)))
    for engine in engines:
        engine.clear_faults()
    return results.count(False)


def _open_sessions(stack: Stack) -> int:
    return stack.sql("SELECT count(*) FROM streaming_streamsession WHERE ended_at IS NULL")[0][0]


def _client_sockets(stack: Stack) -> int:
    """Established connections on the gateway's port, as the kernel counts them."""
    port = f"{stack.gateway().port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(
        fields[1].endswith(f":{port}") and fields[3] == "01"
        for fields in (line.split() for line in lines)
    )
