"""Many streams that are silent: what each costs while nothing happens on it."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import psutil

from bench.load import Job, Load
from bench.measure import Effort, Figures, repeated
from bench.stacks import CpuMeter
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

STREAMS = 2000
SECONDS_PER_TOKEN = 20.0
"""As silent as an engine may be: after 22 s its attempts have failed."""
RATE = 100.0
WARM = 100
"""Streams that are read to their end before anything is measured: what a process loads and keeps
when it is first used is not a stream's."""


def idle(effort: Effort) -> dict[str, Any]:
    """Resident memory of each stream, and processor time at rest with all of them open.

    There is no direct way to compare with: what an engine needs for a stream is its own affair.
    """
    allow_files()
    return repeated(1, lambda: _once(effort))


def allow_files() -> None:
    """Each stream is two files of the gateway, one of the engine and one of the load."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 2 * STREAMS + 500:
        raise RuntimeError(f"{STREAMS} streams take more files than the {hard} that are allowed")


def _once(effort: Effort) -> Figures:
    with (
        SimulatorProcess(pace=1 / SECONDS_PER_TOKEN, model="slow") as slow,
        SimulatorProcess(model="fast") as fast,
        Stack(
            engine_nodes=[f"slow=vllm+{slow.url}", f"fast=vllm+{fast.url}"],
            env={"LOG_LEVEL": "ERROR"},
        ) as stack,
    ):
        gateway = psutil.Process(stack.gateway().pid)
        key = stack.api_key()
        warm = Job(
            url=stack.gateway().url, key=key, model="fast", streams=WARM, tokens=50, rate=RATE,
            label="warm",
        )  # fmt: skip
        Load(warm).result()
        time.sleep(3.0)
        before = _resident(gateway)
        files = gateway.num_fds()
        window = 2 * SECONDS_PER_TOKEN if effort.repeats > 1 else SECONDS_PER_TOKEN
        ramp = STREAMS / RATE
        job = Job(
            url=stack.gateway().url, key=key, model="slow", streams=STREAMS, tokens=100,
            rate=RATE, label="idle", timeout=ramp + window + 12.0,
        )  # fmt: skip
        load = Load(job)
        time.sleep(ramp + 5.0)
        cpu = CpuMeter(gateway.pid)
        time.sleep(window)
        share = cpu.seconds() / window
        bytes_each = (_resident(gateway) - before) / STREAMS
        files_each = (gateway.num_fds() - files) / STREAMS
        live = stack.sql("SELECT count(*) FROM streaming_streamsession WHERE state = 'streaming'")
        streams = load.result().streams
    return {
        "kb_per_stream": bytes_each / 1000,
        "files_per_stream": files_each,
        "cpu_share": share,
        "live": live[0][0],
        "silence_max": max(seen.silence for seen in streams),
    }


def _resident(process: psutil.Process) -> int:
    """Bytes of its own that are in memory; what it shares with others of its kind is nobody's."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    private = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")]
    return sum(private) * 1024
