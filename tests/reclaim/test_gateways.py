"""Whole gateways: however streams end, nothing of them stays at the engine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack

SWEEP = "from streaming.tasks import reclaim_kv_cache as sweep; print(sweep())"
CLOSE_WAIT = "08"


def sockets_in(state: str, gateway: Gateway) -> int:
    """TCP sockets of the gateway in a state, as the kernel counts them."""
    inodes = set()
    for link in Path(f"/proc/{gateway.pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(field[3] == state and field[9] in inodes for field in fields)


def reclaims(stack: Stack) -> dict[str, int]:
    return dict(stack.sql("SELECT reclaim, count(*) FROM streaming_attempt GROUP BY 1"))


def ask_all(readers: Readers, count: int, seen: list[Seen]) -> list[asyncio.Task[Seen]]:
    """``count`` readers of long answers."""
    for number in range(count):
        seen.append(Seen(question(f"Long {number}", 4000)))
    return [asyncio.create_task(readers.ask(one.messages, seen=one)) for one in seen]


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
async def test_a_hundred_clients_leave_at_once(start_stack, dialect):
    with SimulatorProcess(dialect, pace=20) as engine:
        stack = start_stack(
            engine_nodes=[f"a={dialect}+{engine.url}"], env={"GRACE_SECONDS": "0.2"}
        )
        gateway, key = stack.gateway(), stack.api_key()
        async with Readers(gateway.url, key) as readers:
            seen: list[Seen] = []
            tasks = ask_all(readers, 100, seen)
            await until(lambda: all(one.tokens for one in seen), 30)
            assert engine.stats()["running"] == 100
            left_at = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: engine.stats()["running"] == 0, 5)
            print(f"{dialect}: at baseline after {time.monotonic() - left_at:.2f} s (grace 0.2 s)")
        await until(lambda: sockets_in(CLOSE_WAIT, gateway) == 0, 5)
        await until(lambda: reclaims(stack) == {"verified": 100}, 5)
        ((seconds,),) = stack.sql(
            "SELECT max(extract(epoch FROM reclaimed_at - ended_at))::float8 FROM streaming_attempt"
        )
        print(f"{dialect}: verified {seconds:.2f} s after the end at the latest")


async def test_a_gateway_is_killed_under_a_hundred_streams(start_stack):
    """The kernel closes its connections; who takes its sessions over sees it gone, without any sweep,
    on a node that goes on working for others."""
    with SimulatorProcess(pace=20) as engine:
        stack = start_stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"])
        gateway, other, key = stack.gateway(0), stack.gateway(1), stack.api_key()
        async with Readers(gateway.url, key) as readers, Readers(other.url, key) as staying:
            others: list[Seen] = []
            other_tasks = ask_all(staying, 10, others)
            seen: list[Seen] = []
            tasks = ask_all(readers, 100, seen)
            await until(lambda: all(one.tokens for one in [*seen, *others]), 30)
            killed_at = time.monotonic()
            gateway.kill()
            await until(lambda: engine.stats()["running"] == 10, 5)
            print(f"gateway killed: at baseline after {time.monotonic() - killed_at:.2f} s")
            await asyncio.gather(*tasks)
            assert sockets_in(CLOSE_WAIT, other) == 0
            # The survivor suspends what nobody came back for.
            await until(lambda: reclaims(stack) == {"": 10, "verified": 100}, 30)
            ((seconds,),) = stack.sql(
                "SELECT max(extract(epoch FROM reclaimed_at - ended_at))::float8"
                " FROM streaming_attempt"
            )
            print(f"verified {seconds:.2f} s after the takeover at the latest")
            for task in other_tasks:
                task.cancel()
            await asyncio.gather(*other_tasks, return_exceptions=True)
        states = stack.sql(
            "SELECT state FROM streaming_streamsession WHERE id IN (SELECT session_id"
            " FROM streaming_attempt WHERE end_reason = 'gateway_crash') GROUP BY 1"
        )
        assert states == [("suspended",)]


async def test_a_gateway_that_is_stopped_leaves_nothing(start_stack):
    with SimulatorProcess(pace=20) as engine:
        stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"SHUTDOWN_GRACE": "0.5"})
        gateway, key = stack.gateway(), stack.api_key()
        async with Readers(gateway.url, key) as readers:
            seen: list[Seen] = []
            tasks = ask_all(readers, 20, seen)
            await until(lambda: all(one.tokens for one in seen), 30)
            gateway.terminate()
            await until(lambda: engine.stats()["running"] == 0, 10)
            await asyncio.gather(*tasks)
        gateway.wait()
        assert reclaims(stack).keys() <= {"pending", "verified"}
        await asyncio.sleep(1.1)
        stack.manage("shell", "-c", SWEEP)
        assert reclaims(stack) == {"verified": 20}


DEFRAGMENT = """
import time
from streaming.services.defragment import defragment_nodes
for _ in range(100):
    result = defragment_nodes()
    print(result)
    if not result["under_way"]:
        break
    time.sleep(0.2)
"""


async def test_a_fragmented_node_is_cleaned_under_streams(start_stack):
    """Its streams move to the other node, no reader notices, and it works again afterwards."""
    with (
        SimulatorProcess(pace=40, dev_mode=True, kv_blocks=2000) as leaky,
        SimulatorProcess(pace=40, dev_mode=True, kv_blocks=2000) as other,
    ):
        stack = start_stack(
            engine_nodes=[f"a=vllm+{leaky.url}", f"b=vllm+{other.url}"],
            env={"HEALTH_INTERVAL": "0.2"},
        )
        key = stack.api_key()
        leaky.set_fault(kind="kv_leak", times=-1, match="leak")
        await until(lambda: _abilities(stack) == [True, True])
        async with Readers(stack.gateway().url, key) as readers:
            # Ended by their clients: 40 prompts of about 300 tokens stay behind on one of the nodes.
            for number in range(80):
                await readers.ask(question(f"leak {number} " + "word " * 250, 4), max_tokens=4)
            occupied = leaky.stats()["kv_usage"]
            assert occupied > 0.2
            seen = [Seen(question(f"Long {number}", 400)) for number in range(10)]
            tasks = [asyncio.create_task(readers.ask(one.messages, seen=one)) for one in seen]
            await until(lambda: all(one.tokens for one in seen))
            assert leaky.stats()["running"] > 0
            said = await asyncio.to_thread(stack.manage, "shell", "-c", DEFRAGMENT)
            assert leaky.stats()["kv_usage"] < 0.05, said
            await asyncio.gather(*tasks)
        for one in seen:
            assert one.is_whole, one.trouble
        assert stack.sql("SELECT DISTINCT admin_state FROM streaming_inferencenode") == [
            ("active",)
        ]
        events = stack.sql("SELECT kind FROM streaming_nodeevent WHERE node_name = 'a' ORDER BY id")
        kinds = [kind for (kind,) in events]
        assert [k for k in kinds if k.startswith("defragment")] == [
            "defragment_begun",
            "defragmented",
        ]


def _abilities(stack: Stack) -> list[bool]:
    rows = stack.sql("SELECT capabilities -> 'reset_cache' FROM streaming_inferencenode")
    return [row[0] for row in rows]
