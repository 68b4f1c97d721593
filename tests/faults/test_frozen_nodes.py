"""Nodes that fall silent with all their connections open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

STREAMS = 50
PACE = 30


def gaps_of(seen: list[Seen]) -> list[float]:
    """The longest pause that each reader saw, in seconds, in order."""
    return sorted(max(b - a for a, b in pairwise(reader.token_times)) for reader in seen)


def met(pair: Pair, seen: list[Seen]) -> list[Seen]:
    """Those whose first attempt was on the bad node."""
    rows = pair.attempts(seen)
    ids = {row.session_id for row in rows if row.number == 1 and row.node == "bad"}
    return [reader for reader in seen if reader.session_id in ids]


async def nothing_runs(pair: Pair) -> None:
    """Wait until neither engine has a request."""
    await until(lambda: pair.running == 0)


async def all_hedged(pair: Pair, seen: list[Seen]) -> int:
    """Wait until each stream of the bad node is being tried elsewhere; how many they are."""
    await until(lambda: pair.events(seen)["hedged"] >= len(met(pair, seen)) > 0)
    return len(met(pair, seen))


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
async def test_a_stopped_node_is_left(
    start_stack: Callable[..., Stack],
    dialect: str,
    record_property: Callable[[str, object], None],
) -> None:
    """SIGSTOP of one of two nodes under 50 streams: they go on elsewhere, whole."""
    with SimulatorProcess(dialect, pace=PACE) as bad, SimulatorProcess(dialect, pace=PACE) as good:
        stack = start_stack(engine_nodes=nodes_of(bad=bad, good=good))
        pair = Pair(stack, bad, good, stack.api_key())
        async with pair.streams(STREAMS, "frozen", PACE * 4, "plain") as (streams, ends):
            await until(lambda: min(len(reader.tokens) for reader in streams) > PACE // 2)
            bad.stop()
            seen = await ends
        bad.cont()
        assert_all_whole(stack, seen)
        frozen = met(pair, seen)
        gaps = gaps_of(frozen)
        figures = {
            "streams": len(frozen),
            "p50": round(gaps[len(gaps) // 2], 3),
            "p99": round(gaps[-1], 3),
        }
        record_property("gaps", figures)
        print(f"{dialect}: streams of a node that was stopped, seconds to go on: {figures}")
        assert len(frozen) > STREAMS // 4
        assert gaps[-1] < 3.0
        assert {row.grade for row in pair.attempts(frozen) if row.number > 1} == {"exact"}
        await nothing_runs(pair)


async def test_a_lone_stream_of_a_stopped_node_is_left(pair: Pair) -> None:
    async with pair.streams(1, "alone", 90) as ((stream,), ends):
        [node] = [node for node in pair.nodes if node.stats()["running"]]
        node.stop()
        seen = await ends
        node.cont()
    assert_all_whole(pair.stack, seen)
    first, *others = pair.attempts([stream])
    assert first.end_reason in {"overtaken", "stalled", "no_first_token"}, told([first, *others])
    assert others[-1].node != first.node


async def test_siblings_of_a_silent_stream_are_tried_elsewhere_with_it(pair: Pair) -> None:
    """The engine behind the API is frozen: nobody waits for a limit of its own."""
    async with pair.streams(20, "siblings", 120) as (_, ends):
        pair.bad.set_fault(kind="freeze_engine")
        seen = await ends
    assert_all_whole(pair.stack, seen)
    frozen = met(pair, seen)
    assert len(frozen) > 5
    hedged = pair.stack.sql(
        "SELECT session_id::text, extract(epoch FROM at)::float8 FROM streaming_sessionevent"
        " WHERE kind = 'hedged' AND data ->> 'silent' = 'bad' AND session_id = ANY(%s::uuid[])",
        [reader.session_id for reader in frozen],
    )
    first: dict[str, float] = {}
    for session, at in hedged:
        first[session] = min(at, first.get(session, at))
    assert len(first) == len(frozen)
    assert max(first.values()) - min(first.values()) < 1.0  # that of a lone stream is 2 s


@pytest.mark.parametrize("switch", ["node", "model"])
async def test_without_hedging_the_probe_decides(pair: Pair, switch: str) -> None:
    """Switched off: the streams are failed over once the node is found to be down."""
    if switch == "node":
        on, off = (
            f"UPDATE streaming_inferencenode SET hedging = '{state}'" for state in ("on", "off")
        )
    else:
        off = (
            "INSERT INTO streaming_modelpolicy (model, failover, hedging, defragment)"
            " VALUES ('sim-model', 'on', 'off', 'on')"
        )
        on = "DELETE FROM streaming_modelpolicy"
    pair.stack.sql(off)
    try:
        # A gateway reads the switches before it takes its first stream.
        gateway = pair.stack.start_gateway(HEALTH_TIMEOUT="1")
        try:
            async with Readers(gateway.url, pair.key) as readers:
                seen = [Seen(question(f"switched off {number}", 90)) for number in range(12)]
                ends = asyncio.gather(*(readers.ask(s.messages, seen=s) for s in seen))
                await until(lambda: all(s.tokens for s in seen))
                pair.bad.stop()
                await ends
            pair.bad.cont()
        finally:
            gateway.close()
    finally:
        pair.stack.sql(on)
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} == {"first", "failover"}, told(attempts)
    ends_on_bad = {row.end_reason for row in attempts if row.node == "bad"}
    assert ends_on_bad <= {"finished", "stalled", "no_first_token"}, told(attempts)
    assert pair.events(seen)["hedged"] == 0


async def test_late_tokens_of_a_stopped_node_are_not_shown(pair: Pair) -> None:
    """It wakes when others have gone on for it: what it has to say is not wanted."""
    async with pair.streams(16, "late", 180) as (streams, ends):
        pair.bad.stop()
        hedged = await all_hedged(pair, streams)
        await until(lambda: pair.events(streams)["hedge_won"] >= hedged)
        pair.bad.cont()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    rows = [row for row in pair.attempts(seen) if row.node == "bad"]
    assert {row.end_reason for row in rows} == {"overtaken"}, told(rows)
    assert pair.events(seen)["recovering"] == 0
    await nothing_runs(pair)


async def test_the_first_speaks_again(pair: Pair) -> None:
    """The hedges have lost: nothing of them is shown, and their requests are aborted."""
    async with pair.streams(16, "again", 120) as (streams, ends):
        pair.good.set_fault(kind="freeze", after_tokens=0, times=-1)  # for new requests
        pair.bad.stop()
        hedged = await all_hedged(pair, streams)
        pair.bad.cont()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    hedges = [row for row in pair.attempts(seen) if row.kind == "hedge"]
    assert len(hedges) >= hedged
    assert {(row.end_reason, row.first_seq) for row in hedges} == {("overtaken", None)}
    events = pair.events(seen)
    assert events["hedge_lost"] == events["hedged"] == len(hedges)
    assert events["recovering"] == 0
    await nothing_runs(pair)


async def test_a_hedge_that_fails_has_no_say(pair: Pair) -> None:
    async with pair.streams(16, "failed hedge", 120) as (streams, ends):
        pair.good.set_fault(kind="status", arg=500, times=-1)
        pair.bad.stop()
        await until(
            lambda: any(
                row.kind == "hedge" and row.end_reason == "bad_status"
                for row in pair.attempts(streams)
            )
        )
        pair.bad.cont()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} == {"first", "hedge"}, told(attempts)
    assert {row.end_reason for row in attempts if row.kind == "first"} == {"finished"}
    assert pair.events(seen)["recovering"] == 0
    await nothing_runs(pair)


async def test_a_first_that_fails_is_continued_by_its_hedge(pair: Pair) -> None:
    """No third attempt is made beside the one that is under way."""
    async with pair.streams(16, "first fails", 120) as (streams, ends):
        pair.good.set_fault(kind="late_tokens", after_tokens=0, arg=2, times=-1)
        pair.bad.stop()
        await all_hedged(pair, streams)
        pair.bad.kill()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    stricken = met(pair, seen)
    attempts = pair.attempts(stricken)
    assert len(attempts) == 2 * len(stricken), told(attempts)
    assert {(row.kind, row.end_reason) for row in attempts if row.number == 2} == {
        ("hedge", "finished")
    }
    events = pair.events(stricken)
    assert events["recovering"] == events["recovered"] == len(stricken)


@pytest.mark.parametrize("how", ["stop", "leave"])
async def test_a_session_that_ends_while_hedged_leaves_no_request(pair: Pair, how: str) -> None:
    """Neither the silent attempt nor the one beside it goes on for nobody."""
    ended = "stopped" if how == "stop" else "suspended"
    async with pair.streams(16, f"ends by {how}", 600) as (streams, ends):
        pair.good.set_fault(kind="freeze", after_tokens=0, times=-1)
        pair.bad.set_fault(kind="freeze_engine")
        await all_hedged(pair, streams)
        if how == "stop":
            async with pair.readers() as readers:
                for reader in streams:
                    url = f"/v1/sessions/{reader.session_id}/stop"
                    async with readers.client.post(url) as response:
                        assert response.status == 200
            await ends
    await until(lambda: {pair.session(reader)[0] for reader in streams} == {ended})
    await nothing_runs(pair)
    assert all(row.end_reason for row in pair.attempts(streams))


async def test_a_gateway_that_stood_still_blames_nobody(pair: Pair) -> None:
    """SIGSTOP of the gateway itself: when it goes on, all its nodes look silent."""
    gateway = pair.stack.gateway()
    async with pair.streams(40, "stood still", 300) as (_, ends):
        gateway.stop()
        await asyncio.sleep(3)
        gateway.cont()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    events = pair.events(seen)
    assert events["recovering"] == 0
    assert events["hedged"] <= 4
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} <= {"first", "hedge"}, told(attempts)


async def test_when_all_are_silent_for_a_moment(pair: Pair) -> None:
    """Both nodes stand still and go on: nobody is worse off for having been tried elsewhere."""
    async with pair.streams(16, "all silent", 120) as (_, ends):
        for node in pair.nodes:
            node.stop()
        await asyncio.sleep(1.5)
        for node in pair.nodes:
            node.cont()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    assert pair.events(seen)["recovering"] == 0
    await nothing_runs(pair)
