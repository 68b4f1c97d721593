"""Several processes, one ``/metrics``: what adds up, what does not, and what dies with a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import Scrape, scrape, scraped
from tests.project.test_serve import serving
from tests.stack import Stack

GENERATED = 31


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm", pace=100) as engine:
        yield engine


@pytest.fixture
def pair(start_stack, engine: SimulatorProcess, tmp_path: Path) -> Stack:
    return start_stack(
        gateways=2,
        engine_nodes=[f"a=vllm+{engine.url}"],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")},
    )


async def test_both_tell_of_both(pair: Stack) -> None:
    key = pair.api_key()
    one, other = pair.gateways
    for gateway in (one, other):
        async with Readers(gateway.url, key) as readers:
            assert all(seen.is_whole for seen in await readers.ask_many(2, gateway.name, 30))

    def all_delivered(scrape: Scrape) -> bool:
        return scrape.value("unbroken_tokens_delivered_total") == 4 * GENERATED

    told = [await scraped(gateway.url, all_delivered) for gateway in (one, other)]
    assert told[0].families == told[1].families
    for now in told:
        assert now.value("unbroken_tokens_generated_total") == 4 * GENERATED
        assert now.value("unbroken_effective_delivery_ratio") == 1
        assert now.value("unbroken_gateway_processes") == 2
        assert now.value("unbroken_session_ends_total", state="completed") == 4
        # Nodes are not multiplied by those who watch them.
        assert now.value("unbroken_node_state", node="a", state="up") == 1
        assert now.total("unbroken_node_state") == 1
        assert now.total("unbroken_circuit_state") == 1
        assert now.value("unbroken_sockets", state="listen") == 2


async def test_a_killed_process_leaves_its_counters_and_no_gauges(
    pair: Stack, engine: SimulatorProcess, tmp_path: Path
) -> None:
    key = pair.api_key()
    killed, survivor = pair.gateways
    async with Readers(killed.url, key) as readers, Readers(survivor.url, key) as others:
        assert (await readers.ask(question("Whole", 30))).is_whole
        cut = asyncio.gather(*(readers.ask(question(f"Cut {n}", 2000)) for n in range(3)))
        stays = asyncio.create_task(others.ask(question("Stays", 400)))
        before = await scraped(
            survivor.url,
            lambda s: (
                s.value("sse_connections_active") == 4
                and s.value("unbroken_sessions", state="streaming") == 4
            ),
        )
        assert before.value("unbroken_gateway_processes") == 2
        chunks = before.value("sse_chunks_delivered_total")
        assert chunks
        killed.kill()
        assert all(seen.broken for seen in await cut)
        after = await scraped(survivor.url, lambda s: s.value("sse_connections_active") == 1)
        assert after.value("unbroken_gateway_processes") == 1
        assert (after.value("sse_chunks_delivered_total") or 0) >= chunks
        ended = {"protocol": "openai", "end": "whole"}
        assert after.value("unbroken_connections_ended_total", **ended) == 1
        files = {file.name for file in (tmp_path / "metrics").iterdir()}
        assert not any(str(killed.pid) in name for name in files)
        assert {"counter_retired.db", "histogram_retired.db"} <= files
        # The next one adds to what has been counted, and is buried likewise.
        pair.gateways[0].start_again()
        assert await scraped(survivor.url, lambda s: s.value("unbroken_gateway_processes") == 2)
        killed.kill()
        again = await scraped(survivor.url, lambda s: s.value("unbroken_gateway_processes") == 1)
        assert (again.value("sse_chunks_delivered_total") or 0) >= chunks
        assert (again.value("unbroken_connections_ended_total", **ended) or 0) >= 1
        stays.cancel()


async def test_a_frozen_process_does_not_hold_up_the_others(pair: Stack) -> None:
    frozen, other = pair.gateways
    frozen.stop()
    try:
        assert scrape(other.url).value("unbroken_gateway_processes") == 2
    finally:
        frozen.cont()


async def test_serve_shares_and_forgets(tmp_path: Path) -> None:
    """What the supervisor tells its children, and does when one of them dies."""
    with serving("--processes", "2", data_dir=tmp_path / "data") as serve:
        url = serve.state["url"]
        await scraped(url, lambda s: s.value("unbroken_gateway_processes") == 2)
        pid = serve.child("gateway-1")["pid"]
        directory = tmp_path / "data" / "run" / "metrics"
        assert list(directory.glob(f"gauge_*_{pid}.db"))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not list(directory.glob(f"gauge_*_{pid}.db")))
