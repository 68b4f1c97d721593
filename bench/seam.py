"""The seam: a node with a hundred streams is killed while another one is idle."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from typing import Any

from bench.figures import first_token_ms, median, percentile, worst_gap_ms
from bench.load import Job, Load
from bench.measure import Effort, Figures, repeated
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

STREAMS = 100
PACE = 25.0


def seam(effort: Effort) -> dict[str, Any]:
    return repeated(effort.seam_repeats, _kill_once)


def _kill_once() -> Figures:
    with (
        SimulatorProcess(pace=PACE) as victim,
        SimulatorProcess(pace=PACE) as other,
        Stack(
            engine_nodes=[f"victim=vllm+{victim.url}", f"other=vllm+{other.url}"],
            env={"LOG_LEVEL": "ERROR"},
        ) as stack,
    ):
        _let_in(stack, "other", "draining")
        job = Job(
            url=stack.gateway().url, key=stack.api_key(), model="sim-model", streams=STREAMS,
            tokens=int(13 * PACE), rate=40.0, label="seam",
        )  # fmt: skip
        load = Load(job)
        time.sleep(STREAMS / job.rate + 0.5)
        _let_in(stack, "other", "active")
        time.sleep(3.0)
        bystander = socket.create_connection(("127.0.0.1", victim.port))
        killed = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        closed = _until_closed(bystander) - killed
        streams = load.result().streams
        noticed = [
            row[0]
            for row in stack.sql(
                "SELECT (extract(epoch FROM ended_at)::float8 - %s) * 1000 FROM streaming_attempt"
                " WHERE node_name = 'victim'",
                killed,
            )
        ]
        burst = first_token_ms(Load(_burst(other.url, job)).result().streams)
        exact = stack.sql("SELECT count(*) FROM streaming_attempt WHERE seam_grade = 'exact'")
    interval = 1 / PACE
    gaps = [worst_gap_ms(seen, PACE, killed - interval, killed + 1) for seen in streams]
    usual = [worst_gap_ms(seen, PACE, killed - 2, killed - 1) for seen in streams]
    known = [gap for gap in gaps if gap is not None]
    return {
        "gap_p50": median(known),
        "gap_p99": percentile(known, 99),
        "gap_max": max(known),
        "usual_gap_p99": percentile([gap for gap in usual if gap is not None], 99),
        "burst_p50": median(burst),
        "burst_p99": percentile(burst, 99),
        "closed": closed * 1000,
        "noticed_p50": median(noticed),
        "noticed_max": max(noticed),
        "exact": exact[0][0],
        "whole": sum(seen.whole for seen in streams),
    }


def _burst(url: str, job: Job) -> Job:
    """As many streams at once, directly: what the engine's own part of a gap is."""
    return replace(job, url=url, key="", tokens=5, rate=1e6)


def _until_closed(bystander: socket.socket) -> float:
    """When a connection without any use notices the crash."""
    bystander.settimeout(5)
    try:
        bystander.recv(1)
    except ConnectionError:
        pass
    bystander.close()
    return time.time()


def _let_in(stack: Stack, node: str, state: str) -> None:
    """Set what the operator wants of ``node``, and wait until the gateway has read it."""
    stack.sql("UPDATE streaming_inferencenode SET admin_state = %s WHERE name = %s", state, node)
    time.sleep(1.5)
