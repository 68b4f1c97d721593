"""What one process believes of the nodes: its own eyes, the prober's news, the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from streaming.core.failures import Cause
from streaming.fleet.breaker import Circuit
from streaming.fleet.gateway_lock import ADVISORY_CLASS
from streaming.fleet.nodes import Health
from tests.durability.reader import until
from tests.engine_simulator.process import SimulatorProcess
from tests.fleet.conftest import Watch, Workshop


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm") as one:
        yield one


@pytest.fixture
def healthy(engine: SimulatorProcess) -> SimulatorProcess:
    return engine if engine.is_alive else engine.restart()


def stored(workshop: Workshop, name: str = "a") -> tuple[str, str]:
    """health, circuit"""
    return workshop.stack.sql(
        "SELECT health, circuit FROM streaming_inferencenode WHERE name = %s", name
    )[0]


def events(workshop: Workshop, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    rows = workshop.stack.sql("SELECT kind, data FROM streaming_nodeevent ORDER BY id")
    return [(kind, data) for kind, data in rows if not kinds or kind in kinds]


def news(watch: Watch, kind: str) -> list[dict[str, Any]]:
    return [message for message in watch.sent if message["type"] == kind]


async def test_one_probes_and_the_others_read_what_it_found(
    workshop: Workshop, healthy: SimulatorProcess
) -> None:
    workshop.add("a", healthy.url)
    prober = await workshop.start(1)
    assert prober.watch.is_prober
    assert prober.node("a").health is Health.UP
    await until(lambda: stored(workshop)[0] == "up")
    other = await workshop.start(2)
    assert not other.watch.is_prober
    # It knows all from the table, without having asked the node or been told.
    node = other.node("a")
    assert (node.health, node.models) == (Health.UP, prober.node("a").models)
    assert node.can == prober.node("a").can
    assert node.can.figures
    known_at = node.known_at
    await until(lambda: node.known_at > known_at)
    assert node.figures is not None
    assert node.figures.running == 0
    assert not other.sent


async def test_news_are_believed_by_their_age(
    workshop: Workshop, healthy: SimulatorProcess
) -> None:
    workshop.add("a", healthy.url)
    prober, other = await workshop.start(1), await workshop.start(2)
    await until(lambda: bool(news(prober, "found")))
    good = news(prober, "found")[-1]
    node = other.node("a")
    bad = {**good, "finding": {**good["finding"], "health": "down", "reason": "gone", "age": 0.0}}
    other.watch.receive({**bad, "finding": {**bad["finding"], "age": 3600.0}})
    assert node.health is Health.UP
    other.watch.receive(bad)
    assert (node.health, node.reason) == (Health.DOWN, "gone")
    other.watch.receive({**good, "finding": {**good["finding"], "age": 0.0}})
    assert node.health is Health.UP
    for strange in ({}, {"finding": None}, {"finding": {"age": "x"}}, {"node": 10**6}):
        other.watch.receive({"type": "found", "from": 1, "node": node.id, **strange})
    assert node.health is Health.UP


async def test_a_stream_that_failed_counts_at_once_and_the_prober_looks(
    workshop: Workshop, healthy: SimulatorProcess, settings: Any
) -> None:
    settings.STREAMING = type(settings.STREAMING)(health_interval=60, health_timeout=1)
    workshop.add("a", healthy.url)
    prober = await workshop.start(1)
    await until(lambda: stored(workshop)[0] == "up", 20)
    other = await workshop.start(2)
    healthy.kill()
    other.watch.suspect(other.node("a"), "connection_reset")
    assert other.node("a").health is Health.SUSPECT
    # Whoever suspects looks itself: no bus is needed.
    await until(lambda: other.node("a").health is Health.DOWN)
    (told,) = news(other, "suspect")
    assert prober.node("a").health is Health.UP
    prober.watch.receive(told)
    assert prober.node("a").health is Health.SUSPECT
    await until(lambda: prober.node("a").health is Health.DOWN)
    await until(lambda: len(events(workshop, "suspect", "down")) == 2)
    (suspect, said), (down, found) = events(workshop, "suspect", "down")
    assert (suspect, said["by"], said["reason"]) == ("suspect", "gateway 2", "connection_reset")
    assert (down, found["by"], found["was"]) == ("down", "gateway 1", "suspect")
    # What it found down it believes up only when it has seen it itself.
    healthy.restart()
    prober.watch._hurry[prober.node("a").id].set()
    await until(lambda: prober.node("a").health is Health.UP)
    other.watch.receive(news(prober, "found")[-1])
    assert other.node("a").health is Health.DOWN
    await until(lambda: other.node("a").health is Health.UP)


async def test_a_node_that_fell_silent_for_one_gateway_gets_no_work_of_the_others(
    workshop: Workshop, healthy: SimulatorProcess, settings: Any
) -> None:
    """Its probe may take seconds to find out; who has streams there that move knows better."""
    settings.STREAMING = type(settings.STREAMING)(health_interval=60, health_timeout=1)
    workshop.add("a", healthy.url)
    prober, other, third = [await workshop.start(number) for number in range(1, 4)]
    healthy.stop()
    other.watch.suspect_mute(other.node("a"), "its streams are silent")
    (told,) = news(other, "suspect")
    idle, flowing = prober.node("a"), third.node("a")
    flowing.in_flight, flowing.last_data = 1, asyncio.get_running_loop().time()
    third.watch.receive(told)
    assert (flowing.health, flowing.is_mute) == (Health.UP, False)
    flowing.in_flight = 0
    third.watch.receive(told)
    assert (flowing.health, flowing.is_mute) == (Health.SUSPECT, True)
    prober.watch.receive(told)
    assert (idle.health, idle.is_mute) == (Health.SUSPECT, True)
    healthy.cont()
    await until(lambda: {idle.health, flowing.health} == {Health.UP}, 20)
    assert [idle.is_mute, flowing.is_mute] == [False, False]


async def test_a_node_whose_data_flows_is_not_down_by_hearsay(
    workshop: Workshop, healthy: SimulatorProcess
) -> None:
    workshop.add("a", healthy.url)
    prober, other = await workshop.start(1), await workshop.start(2)
    await until(lambda: bool(news(prober, "found")))
    found = news(prober, "found")[-1]
    node = other.node("a")
    node.last_data = asyncio.get_running_loop().time()
    other.watch.receive({**found, "finding": {**found["finding"], "health": "down", "age": 0.0}})
    assert node.health is Health.UP


async def test_when_the_prober_dies_another_takes_over(
    workshop: Workshop, healthy: SimulatorProcess
) -> None:
    workshop.add("a", healthy.url)
    prober = await workshop.start(1)
    await until(lambda: stored(workshop)[0] == "up")
    others = [await workshop.start(2), await workshop.start(3)]
    for task in (*prober.watch._tasks, *prober.watch._probes.values()):
        task.cancel()  # it dies without giving anything back
    await until(lambda: any(other.watch.is_prober for other in others), 8)
    assert [other.watch.is_prober for other in others].count(True) == 1
    assert all(other.node("a").health is Health.UP for other in others)
    healthy.kill()
    await until(lambda: all(other.node("a").health is Health.DOWN for other in others))
    assert stored(workshop)[0] == "down"


async def test_a_mute_node_must_generate(workshop: Workshop, healthy: SimulatorProcess) -> None:
    """It answers /health and accepts requests, and no token comes."""
    workshop.add("a", healthy.url)
    prober = await workshop.start(1)
    healthy.set_fault(kind="freeze_engine")
    node = prober.node("a")
    prober.watch.suspect_mute(node, "its streams are silent")
    await until(lambda: node.health is Health.DOWN)
    assert "generates nothing" in node.reason
    await asyncio.sleep(0.5)  # several probes
    assert node.health is Health.DOWN
    healthy.clear_faults()
    await until(lambda: node.health is Health.UP)
    assert not node.is_mute
    prober.watch.suspect_mute(node, "its streams are silent")
    await until(lambda: node.health is Health.UP)


async def test_circuits_are_shared(workshop: Workshop, healthy: SimulatorProcess) -> None:
    workshop.add("a", healthy.url)
    first, second = await workshop.start(1), await workshop.start(2)
    node = first.node("a")
    for _ in range(5):
        first.fleet.attempt_began(node)
        first.fleet.attempt_failed(node, Cause.ENGINE_ERROR)
        first.fleet.attempt_ended(node)
    assert node.breaker.state is Circuit.OPEN
    # By the table alone.
    await until(lambda: second.node("a").breaker.state is Circuit.OPEN)
    second.fleet.attempt_began(second.node("a"))
    second.fleet.attempt_succeeded(second.node("a"))
    await until(lambda: node.breaker.state is Circuit.CLOSED)
    now = asyncio.get_running_loop().time()
    assert node.pull(now) < 1
    assert second.node("a").pull(now) < 1
    await until(lambda: len(events(workshop, "circuit_closed")) == 1)
    assert [kind for kind, _ in events(workshop) if kind.startswith("circuit")] == [
        "circuit_open", "circuit_half_open", "circuit_closed",
    ]  # fmt: skip
    await until(lambda: stored(workshop)[1] == "closed")


async def test_the_table_is_followed(workshop: Workshop, healthy: SimulatorProcess) -> None:
    node_id = workshop.add("a", healthy.url)
    watch = await workshop.start(1000)  # the id of no row
    sql = workshop.stack.sql
    sql(
        "UPDATE streaming_inferencenode SET weight = 3, failover = 'off', defragment = 'dry_run',"
        " options = '{\"capacity\": \"7\"}', admin_state = 'draining'"
    )
    sql(
        "INSERT INTO streaming_modelpolicy (model, failover, hedging, defragment)"
        " VALUES ('sim-model', 'on', 'off', 'on')"
    )
    ids = sql(
        "INSERT INTO streaming_gatewayinstance (hostname, pid, started_at, heartbeat_at, node_streams)"
        " SELECT 'there', pid, now(), now(), jsonb_build_object(%s::text, pid)"
        " FROM generate_series(1, 3) pid RETURNING id",
        str(node_id),
    )
    node = watch.node("a")
    with psycopg.connect(workshop.stack.database_url, autocommit=True) as holder:
        for (instance_id,) in ids:
            holder.execute("SELECT pg_advisory_lock(%s, %s)", (ADVISORY_CLASS, instance_id))
        await until(lambda: node.weight == 3 and node.others_in_flight == 6)
        holder.execute("SELECT pg_advisory_unlock(%s, %s)", (ADVISORY_CLASS, ids[2][0]))
        await until(lambda: node.others_in_flight == 3)  # the last has died
    await until(lambda: node.others_in_flight == 0)
    assert not node.accepting
    assert node.capacity == 7
    assert watch.fleet.gateways == 4
    switches = watch.fleet.switches("sim-model", node)
    assert (switches.failover, switches.hedging, switches.defragment) == (False, False, "dry_run")
    assert watch.fleet.switches("other", node).defragment == "dry_run"
    sql("UPDATE streaming_inferencenode SET admin_state = 'active', options = '{\"x\": 1}'")
    await asyncio.sleep(0.3)  # what cannot be read changes nothing
    assert not node.accepting
    sql("DELETE FROM streaming_inferencenode")
    await until(lambda: not watch.names)


async def test_operators_have_a_circuit_reset_and_a_node_probed(
    workshop: Workshop, healthy: SimulatorProcess
) -> None:
    node_id = workshop.add("a", healthy.url)
    watch, other = await workshop.start(1), await workshop.start(2)
    node = watch.node("a")
    for _ in range(5):
        watch.fleet.attempt_began(node)
        watch.fleet.attempt_failed(node, Cause.ENGINE_ERROR)
        watch.fleet.attempt_ended(node)
    await until(lambda: other.node("a").breaker.state is Circuit.OPEN)
    order = "UPDATE streaming_inferencenode SET {} = now() WHERE id = %s"
    workshop.stack.sql(order.format("circuit_reset_at"), node_id)
    await until(lambda: node.breaker.state is Circuit.CLOSED)
    await until(lambda: other.node("a").breaker.state is Circuit.CLOSED)
    await until(lambda: stored(workshop)[1] == "closed")

    # The one that does not probe for all looks too, since somebody wants to know.
    known_at = other.node("a").known_at
    workshop.stack.sql(order.format("probe_asked_at"), node_id)
    await until(lambda: other.node("a").known_at > known_at)
