"""Several gateway processes and their nodes: who probes, who knows, and when a drain is done."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.delivery.story import Door
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Gateway, Stack

StartStack = Callable[..., Stack]


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm", pace=20) as one:
        yield one


def prober(stack: Stack) -> int | None:
    """The id of the gateway that holds the lease now."""
    rows = stack.sql("SELECT holder FROM streaming_lease WHERE name = 'probe' AND until > now()")
    return int(rows[0][0].removeprefix("gateway ")) if rows else None


def process_of(stack: Stack, instance_id: int | None) -> Gateway:
    pid = stack.sql("SELECT pid FROM streaming_gatewayinstance WHERE id = %s", instance_id)[0][0]
    return next(gateway for gateway in stack.gateways if gateway.pid == pid)


def knows_a_node(gateway: Gateway) -> bool:
    """Whether a gateway thinks that a node is up."""
    reasons = httpx.get(f"{gateway.url}/readyz").json()["reasons"]
    return "nodes: none is healthy" not in reasons


@pytest.mark.parametrize("signal", ["kill", "stop"])
async def test_the_prober_may_die_or_freeze(
    start_stack: StartStack, engine: SimulatorProcess, signal: str
) -> None:
    stack = start_stack(gateways=3, engine_nodes=[f"a=vllm+{engine.url}"])
    assert all(map(knows_a_node, stack.gateways))
    first = prober(stack)
    dead = process_of(stack, first)
    getattr(dead, signal)()
    began = time.monotonic()
    await until(lambda: prober(stack) not in (None, first), 10)
    assert time.monotonic() - began < 8  # three seconds, and what a loaded machine adds
    living = [gateway for gateway in stack.gateways if gateway is not dead]
    # Nobody took the node for lost meanwhile; and they do hear that it is now.
    assert all(map(knows_a_node, living))
    engine.kill()
    await until(lambda: not any(map(knows_a_node, living)))
    engine.restart()
    await until(lambda: all(map(knows_a_node, living)))
    if signal == "stop":
        dead.cont()
        await until(lambda: knows_a_node(dead))
        assert prober(stack) != first
    kinds = stack.sql("SELECT kind, data->>'by' FROM streaming_nodeevent ORDER BY id")
    later = f"gateway {prober(stack)}"
    assert kinds == [("up", f"gateway {first}"), ("down", later), ("up", later)]


async def test_without_redis_everybody_still_learns(
    start_stack: StartStack, engine: SimulatorProcess
) -> None:
    stack = start_stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"], private_redis=True)
    stack.stop_redis()
    engine.kill()
    await until(lambda: not any(map(knows_a_node, stack.gateways)))
    engine.restart()
    await until(lambda: all(map(knows_a_node, stack.gateways)))


async def test_a_stream_tells_sooner_than_a_probe(start_stack: StartStack) -> None:
    """The probes are a minute apart; the streams of the process that does not probe break off."""
    with SimulatorProcess("vllm", pace=20) as a, SimulatorProcess("vllm", pace=20) as b:
        stack = start_stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"HEALTH_INTERVAL": "60"},
        )
        first = process_of(stack, prober(stack))
        other = next(gateway for gateway in stack.gateways if gateway is not first)
        async with Readers(other.url, stack.api_key()) as readers:
            asking = asyncio.create_task(readers.ask_many(6, "a node dies", 60))
            await until(lambda: a.stats()["running"] > 0 and b.stats()["running"] > 0)
            a.kill()
            seen = await asking
        assert [reader.trouble for reader in seen if not reader.is_whole] == []
        await until(
            lambda: (
                stack.sql("SELECT health FROM streaming_inferencenode ORDER BY name")
                == [("down",), ("up",)]
            )
        )


def streams_reported(stack: Stack) -> int:
    """By the gateways, with their heartbeats."""
    return stack.sql(
        "SELECT coalesce(sum(streams::int), 0) FROM streaming_gatewayinstance,"
        " jsonb_each_text(node_streams) AS load(node, streams)"
    )[0][0]


async def manage(stack: Stack, *arguments: str) -> tuple[int, str, str]:
    """Run a management command; its exit code, output and errors."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=stack.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def state(stack: Stack, name: str) -> str:
    return stack.sql("SELECT admin_state FROM streaming_inferencenode WHERE name = %s", name)[0][0]


async def test_a_drain_is_done_when_the_last_stream_is(
    start_stack: StartStack, engine: SimulatorProcess
) -> None:
    """They can go nowhere else, so they stay; and nobody says that it is drained before."""
    stack = start_stack(
        gateways=2, engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "60"}
    )
    async with Door(stack.api_key()) as door:
        stories = [
            (gateway.url, await door.create(gateway.url, question(f"drain {number}", 4000)))
            for number, gateway in enumerate(stack.gateways)
        ]
        await until(lambda: streams_reported(stack) == 2)
        code, _, refused = await manage(stack, "node", "drain", "a", "--wait", "--timeout", "0.1")
        assert code == 1
        assert "a is not drained after 0.1 s" in refused
        assert "It goes on draining" in refused
        drain = asyncio.create_task(manage(stack, "node", "drain", "a", "--wait"))
        await until(lambda: streams_reported(stack) == 2)
        await door.stop(*stories[0])
        await until(lambda: streams_reported(stack) == 1)
        assert state(stack, "a") == "draining"
        assert not drain.done()
        await door.stop(*stories[1])
        code, said, _ = await drain
        assert code == 0
        assert "a is drained: nothing runs there." in said
    assert state(stack, "a") == "drained"
    stack.manage("node", "resume", "a")
    assert state(stack, "a") == "active"
    events = stack.sql(
        "SELECT kind FROM streaming_nodeevent WHERE kind LIKE '%%ed' OR kind LIKE '%%ing' ORDER BY id"
    )
    assert [kind for (kind,) in events] == ["draining", "drained", "resumed"]


async def test_a_gateway_that_has_not_heard_of_a_drain_holds_it_up(
    start_stack: StartStack, engine: SimulatorProcess
) -> None:
    stack = start_stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"])
    first = process_of(stack, prober(stack))
    deaf = next(gateway for gateway in stack.gateways if gateway is not first)
    deaf.stop()
    # It counts as living for five seconds, and nothing is known of its streams.
    began = time.monotonic()
    stack.manage("node", "drain", "a")
    await until(lambda: state(stack, "a") == "drained", 20)
    assert time.monotonic() - began > 2
    deaf.cont()


@pytest.mark.parametrize("weights", [(1, 1), (1, 3)])
async def test_streams_are_balanced_over_gateways(
    start_stack: StartStack, weights: tuple[int, int]
) -> None:
    with (
        SimulatorProcess("vllm", pace=10) as a,
        SimulatorProcess("vllm", pace=10) as b,
    ):
        stack = start_stack(
            gateways=2,
            engine_nodes=[
                f"{name}=vllm+{node.url}?weight={weight}"
                for name, node, weight in zip("ab", (a, b), weights, strict=True)
            ],
        )  # fmt: skip
        key = stack.api_key()
        async with (
            Readers(stack.gateway(0).url, key) as one,
            Readers(stack.gateway(1).url, key) as two,
        ):
            asking = []
            for number in range(20):
                for readers in (one, two):
                    messages = question(f"balance {number} {id(readers)}", 60)
                    asking.append(asyncio.create_task(readers.ask(messages)))
                await asyncio.sleep(0.02)
            await until(lambda: a.stats()["running"] + b.stats()["running"] == 40)
            share = a.stats()["running"] / 40
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    assert abs(share - weights[0] / sum(weights)) <= 0.15
