"""Nodes that fall silent with all their connections open."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.durability.reader import Readers, Seen, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

PACE = 30
ENV = {"LOG_LEVEL": "INFO"}


def worst_gap(seen: Seen) -> float:
    return max(b - a for a, b in pairwise(seen.token_times))


def count(stack: Stack, kind: str) -> int:
    return stack.sql("SELECT count(*) FROM streaming_sessionevent WHERE kind = %s", kind)[0][0]


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
async def test_a_stopped_node_is_left(start_stack, dialect: str) -> None:
    """SIGSTOP of one of two nodes under 50 streams: they go on elsewhere, whole."""
    with SimulatorProcess(dialect, pace=PACE) as bad, SimulatorProcess(dialect, pace=PACE) as good:
        stack = start_stack(
            engine_nodes=[f"bad={dialect}+{bad.url}", f"good={dialect}+{good.url}"], env=ENV
        )
        async with Readers(stack.gateway().url, stack.api_key()) as readers:
            asked = asyncio.gather(
                *(
                    readers.ask_many(1, f"frozen {number}", PACE * 6, "plain")
                    for number in range(50)
                )
            )
            await until(lambda: bad.stats()["running"] + good.stats()["running"] == 50)
            await asyncio.sleep(1.5)
            on_bad = bad.stats()["running"]
            bad.stop()
            try:
                answers = [seen for (seen,) in await asked]
            finally:
                bad.cont()
        assert [seen.trouble for seen in answers if not seen.is_whole] == []
        gaps = sorted(map(worst_gap, answers))
        print(f"on the stopped node: {on_bad}; gaps p50 {gaps[25]:.3f}, max {gaps[-1]:.3f} s")
        print(
            "hedged",
            count(stack, "hedged"),
            "won",
            count(stack, "hedge_won"),
            "recovering",
            count(stack, "recovering"),
        )
        assert on_bad > 5
        assert (
            stack.sql(
                "SELECT count(*) FROM streaming_attempt WHERE node_name = 'good' AND seam_grade = 'exact'"
            )[0][0]
            >= on_bad
        )
