"""Engines that are healthy and jittery: what looks like silence is none, and nothing is failed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.durability.reader import Seen, question
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

READERS = 20
SLOTS = 8
"""Of each node: fewer than it gets streams, so that some wait in its queue."""
JITTER = {"median": 0.03, "p999": 2.0, "seed": 3}
"""Seconds between tokens, log-normal."""


async def ask_for(pair: Pair, seconds: float) -> list[Seen]:
    """Readers that ask one question after another; all that they saw."""
    until = time.monotonic() + seconds
    seen: list[Seen] = []

    async def ask_on(number: int) -> None:
        asked = 0
        while time.monotonic() < until:
            asked += 1
            messages = question(f"jitter {number} {asked}", 40 + 8 * (number % 10))
            seen.append(await readers.ask(messages))

    async with pair.readers() as readers:
        await asyncio.gather(*(ask_on(number) for number in range(READERS)))
    return seen


async def assert_none_is_failed_over(
    start_stack: Callable[..., Stack], dialect: str, seconds: float
) -> None:
    options = {"slots": SLOTS}
    with SimulatorProcess(dialect, **options) as bad, SimulatorProcess(dialect, **options) as good:
        stack = start_stack(engine_nodes=nodes_of(bad=bad, good=good))
        pair = Pair(stack, bad, good, stack.api_key())
        for node in pair.nodes:
            node.set_fault(kind="jitter", arg=JITTER, times=-1)
        seen = await ask_for(pair, seconds)
        assert_all_whole(stack, seen)
        attempts, events = pair.attempts(seen), pair.events(seen)
        tokens = sum(len(reader.tokens) for reader in seen)
        print(
            f"{dialect}: {len(seen)} answers, {tokens} tokens; {events['hedged']} hedges,"
            f" {events['hedge_won']} won; recovering {events['recovering']}"
        )
        assert len(seen) > 2 * READERS
        assert {row.kind for row in attempts} <= {"first", "hedge"}, told(attempts)
        assert events["recovering"] == 0
        assert not [node for node in pair.nodes if node.stats()["wrong_prefixes"]]


async def test_a_minute_of_jitter(start_stack: Callable[..., Stack]) -> None:
    await asyncio.gather(
        *(assert_none_is_failed_over(start_stack, dialect, 60) for dialect in ("vllm", "llamacpp"))
    )


async def test_slow_engines_are_not_taken_for_silent(start_stack: Callable[..., Stack]) -> None:
    """Four tokens a second: the first pause of each stream is longer than most are silent."""
    slow = {"pace": 4}
    with SimulatorProcess("vllm", **slow) as bad, SimulatorProcess("vllm", **slow) as good:
        stack = start_stack(engine_nodes=nodes_of(bad=bad, good=good))
        pair = Pair(stack, bad, good, stack.api_key())
        async with pair.readers() as readers:
            seen = await readers.ask_many(8, "slow", 6, "plain")
        assert_all_whole(stack, seen)
        attempts = pair.attempts(seen)
        assert {row.kind for row in attempts} == {"first"}, told(attempts)
        assert pair.events(seen)["hedged"] == 0
        assert {row.node for row in attempts} == {"bad", "good"}


@pytest.mark.soak
async def test_ten_minutes_of_jitter(start_stack: Callable[..., Stack]) -> None:
    await asyncio.gather(
        *(assert_none_is_failed_over(start_stack, dialect, 600) for dialect in ("vllm", "llamacpp"))
    )
