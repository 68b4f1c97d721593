"""What is done about silence beyond leaving one frozen node: long prompts, and several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.durability.reader import Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

PACE = 20


def health(stack: Stack) -> dict[str, str]:
    return dict(stack.sql("SELECT name, health FROM streaming_inferencenode"))


@contextmanager
def slow_prefill(start_stack: Callable[..., Stack]) -> Iterator[Pair]:
    """Two engines that need seconds for a prompt of a thousand tokens."""
    slow: dict[str, Any] = {"pace": PACE, "prefill_us_per_token": 6500}
    with SimulatorProcess("llamacpp", **slow) as bad, SimulatorProcess("llamacpp", **slow) as good:
        stack = start_stack(engine_nodes=nodes_of(bad=bad, good=good))
        yield Pair(stack, bad, good, stack.api_key())


async def test_a_node_whose_streams_have_all_been_continued_elsewhere_is_suspect(
    pair: Pair,
) -> None:
    """Nothing is left on it that could be overdue: it must not be given the next answers."""
    async with pair.streams(16, "left", 120) as (streams, ends):
        pair.bad.stop()
        await until(lambda: health(pair.stack)["bad"] != "up")
        async with pair.readers() as readers:
            later = await readers.ask_many(4, "later", 5)
        pair.bad.cont()
        seen = [*await ends, *later]
    assert_all_whole(pair.stack, seen)
    assert {row.node for row in pair.attempts(later)} == {"good"}
    assert pair.events(streams)["recovering"] == 0
    await until(lambda: pair.healthy == 2)


async def test_a_hedge_that_meets_silence_is_made_again_on_a_third_node(
    start_stack: Callable[..., Stack],
) -> None:
    """Two of three nodes stop in the same moment."""
    with (
        SimulatorProcess(pace=PACE) as first,
        SimulatorProcess(pace=PACE) as second,
        SimulatorProcess(pace=PACE) as third,
    ):
        stack = start_stack(engine_nodes=nodes_of(first=first, second=second, third=third))
        pair = Pair(stack, first, second, stack.api_key())
        async with pair.streams(30, "two stop", PACE * 5, "plain") as (_, ends):
            first.stop()
            second.stop()
            seen = await ends
        first.cont()
        second.cont()
        assert_all_whole(stack, seen)
        attempts = pair.attempts(seen)
        last = {row.session_id: row for row in attempts}
        stricken = {row.session_id for row in attempts if row.node != "third"}
        assert len(stricken) > 10
        assert {last[session].node for session in stricken} == {"third"}, told(attempts)
        waits = stack.sql(
            "SELECT max(extract(epoch FROM a.first_token_at - b.started_at))::float8"
            " FROM streaming_attempt a JOIN streaming_attempt b USING (session_id)"
            " WHERE b.number = a.number - 1 AND a.kind = 'hedge' AND b.kind = 'hedge'"
            " AND b.first_seq IS NULL AND a.first_seq IS NOT NULL"
        )
        print(f"from a silent hedge to the token of the next one, at most: {waits[0][0]} s")
        assert {row.end_reason for row in last.values()} == {"finished"}, told(attempts)


async def test_a_long_prompt_is_no_silence(start_stack: Callable[..., Stack]) -> None:
    """An engine that reads for seconds, and nothing else meanwhile, is neither suspect nor left."""
    with slow_prefill(start_stack) as pair:
        async with pair.readers() as readers:
            warm = await readers.ask_many(4, "short", 5)
            messages = question("long " + "word " * 800, 20)
            seen = [*warm, await readers.ask(messages)]
        assert_all_whole(pair.stack, seen)
        assert pair.events(seen)["hedged"] == 0
        assert {row.kind for row in pair.attempts(seen)} == {"first"}
        assert set(health(pair.stack).values()) == {"up"}
        suspected = pair.stack.sql(
            "SELECT count(*) FROM streaming_nodeevent WHERE kind IN ('suspect', 'down')"
        )
        assert suspected == [(0,)]


async def test_streams_beside_a_long_prompt_are_left_where_they_are(
    start_stack: Callable[..., Stack],
) -> None:
    """What an engine that is silent for everybody was given just before explains it."""
    with slow_prefill(start_stack) as pair:
        long = Seen(question("long " + "word " * 800, 20))
        async with (
            pair.streams(12, "beside", PACE * 6, "plain") as (streams, ends),
            pair.readers() as readers,
        ):
            answer = asyncio.ensure_future(readers.ask(long.messages, seen=long))
            await until(lambda: bool(long.session_id and pair.attempts([long])))
            node = {"bad": pair.bad, "good": pair.good}[pair.attempts([long])[0].node]
            node.stop()  # as if it read the prompt and did nothing else
            await asyncio.sleep(1.0)
            node.cont()
            seen = [*await ends, await answer]
        assert_all_whole(pair.stack, seen)
        assert pair.events(seen)["hedged"] == 0
        assert pair.events(streams)["recovering"] == 0
