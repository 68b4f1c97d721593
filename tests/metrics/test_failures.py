"""What a failing node leaves in the numbers."""

from __future__ import annotations

import asyncio

from tests.durability.reader import Readers, question
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import scraped
from tests.stack import Stack

STREAMS = 6
TOKENS = 300


async def test_a_node_dies_under_streams(start_stack) -> None:
    with SimulatorProcess("vllm", pace=60) as a, SimulatorProcess("vllm", pace=60) as b:
        stack: Stack = start_stack(
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"], env={"HEALTH_INTERVAL": "0.2"}
        )
        url, key = stack.gateway().url, stack.api_key()
        async with Readers(url, key) as readers:
            asked = asyncio.create_task(readers.ask_many(STREAMS, "Failing", TOKENS))
            before = await scraped(
                url,
                lambda s: (
                    s.value("unbroken_first_token_seconds_count", model="sim-model") == STREAMS
                    and bool(s.value("unbroken_node_streams", node="a"))
                ),
            )
            failing = before.value("unbroken_node_streams", node="a")
            assert failing
            a.kill()
            seen = await asked
        assert all(one.is_whole for one in seen), [one.trouble for one in seen]
        now = await scraped(
            url,
            lambda s: (
                s.total("unbroken_failovers_total") == failing
                and s.value("unbroken_tokens_delivered_total") == STREAMS * (TOKENS + 1)
            ),
        )
        labels = now.labels("unbroken_failovers_total")
        assert [(label["node"], label["grade"]) for label in labels] == [("a", "exact")]
        seams = {"kind": "failover", "grade": "exact"}
        assert now.value("unbroken_seam_gap_seconds_count", **seams) == failing
        assert now.value("unbroken_recovery_seconds_count", kind="failover") == failing
        assert now.total("unbroken_detection_seconds_count") == failing
        gap = now.total("unbroken_seam_gap_seconds_sum")
        assert gap >= now.total("unbroken_recovery_seconds_sum")
        assert now.value("unbroken_attempts_total", node="b", reason="finished") == STREAMS
        assert now.total("unbroken_attempts_total") == STREAMS + failing
        assert now.value("unbroken_node_state", node="a", state="down") == 1
        assert now.value("unbroken_first_token_seconds_count", model="sim-model") == STREAMS
        reads = now.total("unbroken_inter_token_seconds_count")
        assert reads > STREAMS * TOKENS / 10
        assert now.total("unbroken_inter_token_seconds_sum") > 0
        wasted = now.total("unbroken_tokens_wasted_total")
        assert now.value("unbroken_tokens_generated_total") == STREAMS * (TOKENS + 1) + wasted


async def test_what_a_reader_leaves_is_reclaimed(start_stack) -> None:
    with SimulatorProcess("vllm", pace=100) as engine:
        stack: Stack = start_stack(
            engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "0.2"}
        )
        url, key = stack.gateway().url, stack.api_key()
        async with Readers(url, key) as readers:
            await readers.ask(question("Leave", 2000), leave_after=5)
        now = await scraped(
            url,
            lambda s: s.value("unbroken_reclaims_total", node="a", outcome="verified") == 1,
        )
        assert now.value("unbroken_reclaim_seconds_count", node="a") == 1
        assert now.value("unbroken_attempts_total", node="a", reason="cancelled") == 1
