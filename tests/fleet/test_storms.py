"""A node dies under hundreds of streams: those that are left are not drowned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

LIMIT = 16
STREAMS, FEW = 300, 27
"""All streams, and those of the tenant that has few of them."""
TOKENS = 60
SLOW: dict[str, Any] = {"pace": 1.5}
"""The node that dies: its streams last until all have begun."""
STEADY: dict[str, Any] = {"ttft_ms": 250}
"""The one that is left: a first token takes long enough for continuations to pile up."""
AT_ONCE = 50

_RECOVERING = "SELECT id::text FROM streaming_streamsession WHERE state = 'recovering'"


def most_at_once(spans: list[tuple[datetime, datetime]]) -> int:
    """How many of these overlap at the worst moment."""
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = worst = 0
    for _, change in moments:
        running += change
        worst = max(worst, running)
    return worst


def continuations(stack: Stack) -> list[tuple[datetime, datetime, str]]:
    """In the order in which they began: their start and first token, and their tenant."""
    return stack.sql(
        "SELECT a.started_at, a.first_token_at, t.name FROM streaming_attempt a"
        " JOIN streaming_streamsession s ON s.id = a.session_id"
        " JOIN streaming_tenant t ON t.id = s.tenant_id"
        " WHERE a.kind = 'failover' ORDER BY a.started_at"
    )


def count(stack: Stack, condition: str) -> int:
    return stack.sql(f"SELECT count(*) FROM streaming_streamsession WHERE {condition}")[0][0]


def admin_state(stack: Stack, name: str) -> str:
    query = "SELECT admin_state FROM streaming_inferencenode WHERE name = %s"
    return stack.sql(query, name)[0][0]


@asynccontextmanager
async def streams_on_one(
    pair: Pair, asked: list[tuple[Readers, Seen]]
) -> AsyncIterator[asyncio.Future[list[Seen]]]:
    """Streams that all run on the bad node, while the good one is free to take them."""
    pair.stack.manage("node", "drain", "good")
    await until(lambda: admin_state(pair.stack, "good") == "drained")
    tasks: list[asyncio.Task[Seen]] = []
    try:
        for start in range(0, len(asked), AT_ONCE):
            some = asked[start : start + AT_ONCE]
            tasks += (
                asyncio.create_task(readers.ask(seen.messages, seen=seen)) for readers, seen in some
            )
            await until(lambda some=some: all(seen.tokens for _, seen in some))
        pair.stack.manage("node", "resume", "good")
        yield asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def questions(count: int, text: str) -> list[Seen]:
    return [Seen(question(f"{text} {number}", TOKENS, "plain")) for number in range(count)]


async def test_a_node_dies_with_hundreds_of_streams(start_stack: Callable[..., Stack]) -> None:
    with SimulatorProcess(**SLOW) as bad, SimulatorProcess(**STEADY) as good:
        stack = start_stack(
            engine_nodes=nodes_of(bad=bad, good=good),
            env={"MAX_CONTINUATIONS": str(LIMIT), "HEALTH_INTERVAL": "0.3"},
        )
        pair = Pair(stack, bad, good, stack.api_key("many"))
        url = stack.gateway().url
        async with Readers(url, pair.key) as many, Readers(url, stack.api_key("few")) as few:
            asked = [(many, seen) for seen in questions(STREAMS - FEW, "many")]
            asked += [(few, seen) for seen in questions(FEW, "few")]
            async with streams_on_one(pair, asked) as ends:
                bad.kill()
                await until(lambda: count(stack, "state = 'recovering'") > STREAMS // 2)
                waiting = {row[0] for row in stack.sql(_RECOVERING)}
                new = await many.ask(question("a new one", 2, "plain"))
                still_waiting = count(stack, "state = 'recovering'")
                seen = await ends
    assert new.is_whole
    assert still_waiting > 0  # it did not wait for them
    assert_all_whole(stack, seen)
    attempts = pair.attempts(seen)
    assert len(attempts) == 2 * STREAMS, told(attempts)
    begun = continuations(stack)
    assert len(begun) == STREAMS
    assert most_at_once([(start, first) for start, first, _ in begun]) == LIMIT
    # Those who waited were told that we go on.
    late = [reader for reader in seen if reader.session_id in waiting]
    assert all(b": ping" in [words for _, words in reader.comments] for reader in late)
    # While both waited each had half of the places.
    last = max(at for at, (_, _, tenant) in enumerate(begun) if tenant == "few")
    assert last < 2 * FEW + LIMIT


async def test_two_gateways_share_the_limit(start_stack: Callable[..., Stack]) -> None:
    with SimulatorProcess(**SLOW) as bad, SimulatorProcess(**STEADY) as good:
        stack = start_stack(
            gateways=2,
            engine_nodes=nodes_of(bad=bad, good=good),
            env={"MAX_CONTINUATIONS": str(LIMIT), "HEALTH_INTERVAL": "0.3"},
        )
        pair = Pair(stack, bad, good, stack.api_key())
        async with (
            Readers(stack.gateway(0).url, pair.key) as one,
            Readers(stack.gateway(1).url, pair.key) as other,
        ):
            asked = [
                (readers, seen)
                for readers in (one, other)
                for seen in questions(30, f"of {readers is one}")
            ]
            async with streams_on_one(pair, asked) as ends:
                bad.kill()
                seen = await ends
    assert_all_whole(stack, seen)
    spans = [(start, first) for start, first, _ in continuations(stack)]
    assert LIMIT // 2 < most_at_once(spans) <= LIMIT
