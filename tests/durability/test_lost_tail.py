"""A failover to a standby that had not heard of everything: what was durable is not there any more.

What docs/operations.md says of an asynchronous standby.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.delivery.story import Door
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

LOST = 5
REWIND = """
WITH kept AS (
    SELECT max(last_seq) AS seq FROM streaming_tokencheckpoint
    WHERE last_seq <= (SELECT durable_seq FROM session_fence) - %s
), gone AS (
    DELETE FROM streaming_tokencheckpoint WHERE last_seq > (SELECT seq FROM kept)
)
UPDATE session_fence SET durable_seq = (SELECT seq FROM kept) RETURNING durable_seq
"""


async def test_an_answer_whose_last_rows_are_gone_is_computed_again_from_there(
    start_stack: Callable[..., Stack],
) -> None:
    with SimulatorProcess("vllm", pace=20) as engine:
        stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], private_postgres=True)
        gateway = stack.gateway()
        async with Door(stack.api_key()) as door:
            story = await door.create(gateway.url, question("tail", 80))
            reading = asyncio.create_task(door.read_on([gateway.url], story, 60))
            await until(lambda: story.cursor > 20, 30)
            # Frozen, so that it sees what the promoted standby has, and nothing between.
            gateway.stop()
            await asyncio.to_thread(stack.stop_postgres, kill=True)
            await asyncio.to_thread(stack.start_postgres)
            ((kept,),) = stack.sql(REWIND, LOST)
            seen = story.cursor
            gateway.cont()
            await reading
    # Nobody is told of seqs that they have; what the reader has is by the run that was lost, the rest
    # by the new one, which on this engine says the same.
    assert kept < seen
    assert story.is_whole
    events = stack.sql(
        "SELECT seq, data->>'reason' FROM streaming_sessionevent WHERE kind = 'taken_over'"
    )
    assert events == [(kept, "runner_lost")]
    assert "the fence refused a batch" in gateway.log
