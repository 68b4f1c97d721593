"""Each node has connections ready for as many streams as another may lose at once."""

from __future__ import annotations

import asyncio

import psutil

from tests.delivery.story import Door
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

STREAMS = 10


def connections(engine: SimulatorProcess) -> int:
    made = psutil.Process(engine.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in made)


def in_flight(stack: Stack) -> int:
    return stack.sql("SELECT count(*) FROM streaming_streamsession WHERE ended_at IS NULL")[0][0]


async def test_spares_follow_the_load() -> None:
    with (
        SimulatorProcess("vllm", pace=20) as a,
        SimulatorProcess("vllm", pace=20) as b,
        SimulatorProcess("llamacpp", pace=20) as c,
        Stack(
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}", f"c=llamacpp+{c.url}"],
            env={"HEALTH_INTERVAL": "0.2", "GRACE_SECONDS": "60"},
        ) as stack,
    ):
        stack.sql("UPDATE streaming_inferencenode SET admin_state = 'draining' WHERE name = 'c'")
        await asyncio.sleep(0.5)
        async with Door(stack.api_key()) as door:
            for number in range(STREAMS):
                await door.create(stack.gateway().url, question(f"spare {number}", 160))
            # Some of the streams each, and as many spares as the other has of them. Probes have one
            # connection of their own.
            await until(lambda: STREAMS <= connections(a) <= STREAMS + 1)
            await until(lambda: STREAMS <= connections(b) <= STREAMS + 1)
            # A connection costs llama.cpp a thread.
            await until(lambda: connections(c) <= 1)
            await until(lambda: in_flight(stack) == 0, 30)
        # Those that were used are kept for a while; the spares are not.
        used = STREAMS - 2
        await until(lambda: connections(a) <= used and connections(b) <= used)
