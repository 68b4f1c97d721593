"""Draining a node: its streams move while they are read, and nobody notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.durability.reader import Seen, until
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

STREAMS = 30
PACE = 25
TOKENS = 5 * PACE


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def shared_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with (
        SimulatorProcess(request.param, pace=PACE) as bad,
        SimulatorProcess(request.param, pace=PACE) as good,
        Stack(
            engine_nodes=nodes_of(bad=bad, good=good),
            env={"HEALTH_INTERVAL": "0.3", "NODE_WAIT_SECONDS": "20"},
        ) as stack,
    ):
        yield Pair(stack, bad, good, stack.api_key())


@pytest.fixture
async def pair(shared_pair: Pair) -> Pair:
    """Both nodes active, and each given its half of the streams."""
    order(shared_pair, "active", "bad", "good")
    await shared_pair.mend()
    return shared_pair


def order(pair: Pair, state: str, *names: str) -> None:
    """What ``manage.py node`` does to several nodes one after the other, at once."""
    pair.stack.sql(
        "UPDATE streaming_inferencenode SET admin_state = %s, admin_state_at = now()"
        " WHERE name = ANY(%s)",
        state,
        list(names),
    )


def admin_states(pair: Pair) -> dict[str, str]:
    return dict(pair.stack.sql("SELECT name, admin_state FROM streaming_inferencenode"))


def assert_unnoticed(pair: Pair, seen: list[Seen]) -> None:
    """Whole, and no reader was told anything."""
    assert_all_whole(pair.stack, seen)
    events = pair.events(seen)
    assert events["recovering"] == events["recovered"] == 0
    assert [reader.comments for reader in seen if reader.comments] == []
    assert {pair.session(reader)[2] for reader in seen} == {0}


async def test_streams_move_unnoticed(
    pair: Pair, record_property: Callable[[str, object], None]
) -> None:
    async with pair.streams(2 * STREAMS, "drained", TOKENS) as (_, ends):
        on_bad = pair.bad.stats()["running"]
        order(pair, "draining", "bad")
        await until(lambda: pair.bad.stats()["running"] == 0)
        await until(lambda: pair.good.stats()["running"] == 2 * STREAMS)
        seen = await ends
    assert on_bad > STREAMS // 2
    assert_unnoticed(pair, seen)
    attempts = pair.attempts(seen)
    moves = [row for row in attempts if row.kind == "migration"]
    assert {row.kind for row in attempts} == {"first", "migration"}, told(attempts)
    assert {row.end_reason for row in attempts if row.node == "bad"} == {"migrated"}
    assert {(row.node, row.grade, row.end_reason) for row in moves} == {
        ("good", "exact", "finished")
    }
    assert len(moves) == on_bad
    events = pair.events(seen)
    assert events["moving"] == events["moved"] == on_bad
    moved = {row.session_id for row in moves}
    gaps = sorted(
        max(b - a for a, b in pairwise(reader.token_times))
        for reader in seen
        if reader.session_id in moved
    )
    figures = {"streams": len(gaps), "worst_ms": round(gaps[-1] * 1000)}
    record_property("gaps", figures)
    print(f"{pair.bad.dialect}: gaps of streams that were moved off a drained node: {figures}")
    assert gaps[-1] < 1.5
    await until(lambda: admin_states(pair) == {"bad": "drained", "good": "active"})


async def test_with_nowhere_to_go_streams_stay_to_their_end(pair: Pair) -> None:
    async with pair.streams(STREAMS, "no place", 2 * PACE) as (_, ends):
        order(pair, "draining", "bad", "good")
        seen = await ends
    assert_unnoticed(pair, seen)
    assert {row.end_reason for row in pair.attempts(seen)} == {"finished"}
    await until(lambda: set(admin_states(pair).values()) == {"drained"})


async def test_the_target_dies_under_the_move(pair: Pair) -> None:
    """What has moved waits for it to come back; what has not stays where it is."""
    async with pair.streams(STREAMS, "target dies", TOKENS) as (streams, ends):
        order(pair, "draining", "bad")
        await until(lambda: pair.events(streams)["moving"] > 0)
        pair.good.kill()
        await until(lambda: pair.events(streams)["recovering"] > 0)
        pair.good.restart()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} <= {"first", "migration", "failover"}, told(attempts)
    await until(lambda: admin_states(pair)["bad"] == "drained")


async def test_a_target_that_fails_is_not_the_end(pair: Pair) -> None:
    """The first to be moved find their new node failing."""
    async with pair.streams(STREAMS, "target fails", TOKENS) as (_, ends):
        pair.good.set_fault(kind="reset", after_tokens=0, times=4)  # for new requests
        order(pair, "draining", "bad")
        seen = await ends
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.end_reason for row in attempts if row.kind == "migration"} == {
        "connection_reset",
        "finished",
    }, told(attempts)


async def test_a_frozen_node_is_drained(pair: Pair) -> None:
    """Its streams are silent and unwanted at once."""
    async with pair.streams(STREAMS, "frozen", TOKENS) as (_, ends):
        pair.bad.stop()
        order(pair, "draining", "bad")
        seen = await ends
        pair.bad.cont()
    assert_all_whole(pair.stack, seen)
    await until(lambda: pair.bad.stats()["running"] == 0)
    await until(lambda: admin_states(pair)["bad"] == "drained")


async def test_drained_and_resumed_at_once(pair: Pair) -> None:
    """An operator's second thought: who has moved has moved, and the node is used again."""
    async with pair.streams(STREAMS, "second thought", TOKENS) as (streams, ends):
        order(pair, "draining", "bad")
        await until(lambda: pair.events(streams)["moving"] > 0)
        order(pair, "active", "bad")
        seen = await ends
    assert_unnoticed(pair, seen)
    assert {row.kind for row in pair.attempts(seen)} == {"first", "migration"}
    assert admin_states(pair)["bad"] == "active"
    await pair.mend()  # which waits until both have their half of new streams


async def test_back_and_forth(pair: Pair) -> None:
    """Each node is drained in turn under the same streams."""
    async with pair.streams(STREAMS, "back and forth", 2 * TOKENS) as (_, ends):
        for leaving, staying in (("bad", "good"), ("good", "bad")) * 2:
            order(pair, "active", staying)
            order(pair, "draining", leaving)
            node = getattr(pair, leaving)
            await until(lambda node=node: node.stats()["running"] == 0)
        seen = await ends
    assert_unnoticed(pair, seen)
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} == {"first", "migration"}, told(attempts)
