"""What readers notice when a node is frozen under their streams, or drained."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.figures import median, percentile, worst_gap_ms
from bench.load import Job, Load
from bench.measure import Effort, Figures, repeated
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

PACE = 30.0
STREAMS = 50


def frozen(effort: Effort) -> dict[str, Any]:
    """SIGSTOP of one of two nodes; the gaps are those of the streams that ran on it."""
    return repeated(effort.seam_repeats, lambda: _once(_freeze))


def drained(effort: Effort) -> dict[str, Any]:
    """One of two nodes is drained by its operator."""
    return repeated(effort.seam_repeats, lambda: _once(_drain))


def _freeze(stack: Stack, node: SimulatorProcess) -> None:
    node.stop()


def _drain(stack: Stack, node: SimulatorProcess) -> None:
    stack.manage("node", "drain", "one")


def _once(strike: Callable[[Stack, SimulatorProcess], None]) -> Figures:
    with (
        SimulatorProcess(pace=PACE) as one,
        SimulatorProcess(pace=PACE) as other,
        Stack(
            engine_nodes=[f"one=vllm+{one.url}", f"other=vllm+{other.url}"],
            env={"LOG_LEVEL": "ERROR"},
        ) as stack,
    ):
        job = Job(
            url=stack.gateway().url, key=stack.api_key(), model="sim-model", streams=STREAMS,
            tokens=int(12 * PACE), rate=40.0, label=f"silent {time.time_ns()}",
        )  # fmt: skip
        load = Load(job)
        time.sleep(STREAMS / job.rate + 3.0)
        struck = time.time()
        strike(stack, one)
        try:
            streams = load.result().streams
        finally:
            one.cont()
        moved = {
            row[0]
            for row in stack.sql(
                "SELECT session_id::text FROM streaming_attempt WHERE node_name = 'one'"
                " AND kind = 'first' AND end_reason <> 'finished'"
            )
        }
        kinds = dict(
            stack.sql(
                "SELECT kind, count(*) FROM streaming_attempt WHERE kind <> 'first' GROUP BY 1"
            )
        )
    interval = 1 / PACE
    gaps = [
        gap
        for seen in streams
        if seen.session in moved
        and (gap := worst_gap_ms(seen, PACE, struck - interval, struck + 5)) is not None
    ]
    return {
        "moved": len(moved),
        "gap_p50": median(gaps),
        "gap_p99": percentile(gaps, 99),
        "hedges": kinds.get("hedge", 0),
        "failovers": kinds.get("failover", 0),
        "whole": sum(seen.whole for seen in streams),
    }
