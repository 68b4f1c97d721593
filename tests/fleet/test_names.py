"""Nodes of a name: one for each of its addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.fleet.dns import system_resolve, with_address
from streaming.fleet.nodes import Health
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.fleet.conftest import Watch, Workshop
from tests.stack import Stack

Pods = tuple[SimulatorProcess, SimulatorProcess]


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Two engines on the same port of two addresses."""
    with (
        SimulatorProcess("vllm", host="127.0.0.2") as one,
        SimulatorProcess("vllm", host="127.0.0.3", port=one.port) as other,
    ):
        yield one, other


@pytest.fixture
async def pool(workshop: Workshop, pods: Pods) -> Watch:
    """A watch on the node ``pool``, which has both addresses."""
    options = '{"dns": "all", "capacity": "9"}'
    workshop.add("pool", f"http://pool.test:{pods[0].port}", options=options, hedging="off")
    workshop.names.addresses = ["127.0.0.2", "127.0.0.3"]
    watch = await workshop.start(1)
    await until(lambda: len(watch.names) == 2)
    return watch


def beat(workshop: Workshop, watch: Watch) -> None:
    """What a gateway reports with its heartbeat."""
    workshop.stack.sql("DELETE FROM streaming_gatewayinstance")
    streams = ", ".join(f'"{node}": {count}' for node, count in watch.watch.streams().items())
    workshop.stack.sql(
        "INSERT INTO streaming_gatewayinstance (hostname, pid, started_at, heartbeat_at,"
        " node_streams, nodes_read_at) VALUES ('here', 1, now(), now(), %s::jsonb, %s)",
        f"{{{streams}}}", watch.watch.read_at,
    )  # fmt: skip


async def test_each_address_is_a_node_and_the_name_is_none(workshop: Workshop, pool: Watch) -> None:
    assert pool.names == {"pool@127.0.0.2", "pool@127.0.0.3"}
    nodes = [pool.node("pool@127.0.0.2"), pool.node("pool@127.0.0.3")]
    await until(lambda: all(node.health is Health.UP for node in nodes))
    assert [node.capacity for node in nodes] == [9, 9]
    assert not any(node.switches.hedging for node in nodes)
    rows = workshop.stack.sql(
        "SELECT source, parent_id IS NOT NULL, options FROM streaming_inferencenode"
        " WHERE name LIKE 'pool@%%'"
    )
    assert rows == [("dns", True, {"capacity": "9"})] * 2


async def test_a_new_address_comes_and_the_name_is_followed(
    workshop: Workshop, pool: Watch
) -> None:
    workshop.names.addresses = ["127.0.0.2", "127.0.0.3", "::1"]
    await until(lambda: "pool@::1" in pool.names)
    assert pool.node("pool@::1").base_url.startswith("http://[::1]:")
    workshop.stack.sql("UPDATE streaming_inferencenode SET weight = 5 WHERE name = 'pool'")
    await until(lambda: pool.node("pool@127.0.0.2").weight == 5)


async def test_an_address_that_is_gone_drains_first(workshop: Workshop, pool: Watch) -> None:
    node = pool.node("pool@127.0.0.3")
    await until(lambda: node.health is Health.UP)
    pool.fleet.attempt_began(node)
    beat(workshop, pool)
    workshop.names.addresses = ["127.0.0.2"]
    await until(lambda: not node.accepting)
    assert pool.node("pool@127.0.0.2").accepting
    beat(workshop, pool)
    await asyncio.sleep(0.5)
    assert "pool@127.0.0.3" in pool.names  # a stream runs there
    pool.fleet.attempt_ended(node)
    beat(workshop, pool)
    await until(lambda: pool.names == {"pool@127.0.0.2"})
    events = workshop.stack.sql(
        "SELECT kind FROM streaming_nodeevent WHERE node_name = 'pool@127.0.0.3' ORDER BY id"
    )
    assert [kind for (kind,) in events] == ["added", "up", "address_left", "removed"]


async def test_an_address_that_comes_back_stays(workshop: Workshop, pool: Watch) -> None:
    node = pool.node("pool@127.0.0.3")
    pool.fleet.attempt_began(node)
    beat(workshop, pool)
    workshop.names.addresses = ["127.0.0.2"]
    await until(lambda: not node.accepting)
    workshop.names.addresses = ["127.0.0.2", "127.0.0.3"]
    await until(lambda: node.accepting)
    assert pool.node("pool@127.0.0.3") is node


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        socket.gaierror(socket.EAI_NONAME, "no such name"),
        None,
    ],
)
async def test_a_resolver_in_trouble_takes_no_healthy_node_away(
    workshop: Workshop, pool: Watch, error: OSError | None
) -> None:
    nodes = [pool.node("pool@127.0.0.2"), pool.node("pool@127.0.0.3")]
    await until(lambda: all(node.health is Health.UP for node in nodes))
    await until(lambda: workshop.stack.sql(
        "SELECT count(*) FROM streaming_inferencenode WHERE health = 'up'") == [(2,)]
    )  # fmt: skip
    workshop.names.addresses, workshop.names.error = [], error
    asked = workshop.names.asked
    await until(lambda: workshop.names.asked > asked + 2)
    assert all(node.accepting for node in nodes)


async def test_a_drain_of_the_name_is_one_of_all_its_addresses(
    workshop: Workshop, pool: Watch
) -> None:
    workshop.stack.manage("node", "drain", "pool")
    nodes = [pool.node("pool@127.0.0.2"), pool.node("pool@127.0.0.3")]
    await until(lambda: not any(node.accepting for node in nodes))
    workshop.names.addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    await until(lambda: len(pool.names) == 3)
    assert not pool.node("pool@127.0.0.4").accepting
    await until(lambda: not _still_draining(workshop, pool))
    assert "draining" not in workshop.stack.manage("node", "list")
    workshop.stack.manage("node", "resume", "pool")
    await until(lambda: all(node.accepting for node in nodes))


def _still_draining(workshop: Workshop, watch: Watch) -> list[Any]:
    beat(workshop, watch)
    return workshop.stack.sql(
        "SELECT name FROM streaming_inferencenode WHERE admin_state <> 'drained'"
    )


def test_an_address_takes_the_place_of_the_host() -> None:
    assert with_address("http://pool:8000/v", "10.0.0.1") == "http://10.0.0.1:8000/v"
    assert with_address("https://pool", "fd00::1") == "https://[fd00::1]"


async def test_the_systems_resolver_is_asked() -> None:
    assert "127.0.0.1" in await system_resolve("localhost", 80)


async def test_a_whole_gateway_serves_from_the_addresses_of_a_name() -> None:
    with (
        SimulatorProcess("vllm") as engine,
        Stack(engine_nodes=[f"pool=vllm+http://localhost:{engine.port}?dns=all"]) as stack,
    ):
        await until(lambda: ("up",) in stack.sql("SELECT health FROM streaming_inferencenode"))
        async with Readers(stack.gateway().url, stack.api_key()) as readers:
            seen = await readers.ask(question("by name", 20))
        assert seen.is_whole, seen.trouble
        assert engine.stats()["requests"][-1]["headers"]["host"] == f"localhost:{engine.port}"
        # The name leaves the environment: its addresses drain, and are gone.
        stack.engine_nodes = []
        stack.gateway().terminate()
        stack.gateway().wait()
        stack.start_gateway(ENGINE_NODES="")
        await until(lambda: not stack.sql("SELECT 1 FROM streaming_inferencenode"), 20)
