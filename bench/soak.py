"""``python -m bench.soak --hours N``: a third of the time for leaks, the rest for chaos.

Chaos runs one after the other, each with a seed of its own, half an hour at most (``bench.chaos`` keeps
a report of each). For leaks nothing is broken: short streams go through one gateway, and what it holds
is read every few seconds, once nothing runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from bench import report
from bench.load import Job, Load
from bench.stacks import start_durable_services
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Stack

CHAOS_MINUTES = 30.0
BATCH = 500
"""Streams between two readings."""
RATE = 50.0
TOKENS = 20
WARM_UP = 0.2
"""Share of the readings that do not count: caches and pools fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the gateway held after so many ``streams`` had come and gone."""

    streams: int
    memory_kb: float
    files: int
    threads: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1, help="of the first chaos run")
    options = parser.parse_args()
    seconds = options.hours * 3600
    until = time.monotonic() + seconds / 3
    start_durable_services()
    readings = leaks(until)
    print(told(readings), flush=True)
    path = report.RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-leaks.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(one) for one in readings], indent=1))
    worst, seed = 0, options.seed
    end = until + seconds * 2 / 3
    while (left := (end - time.monotonic()) / 60) > 1:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bench.chaos", "--preset", "full", "--seed", str(seed)),
                *("--minutes", str(min(left, CHAOS_MINUTES)), "--streams", str(10**9)),
            ],
            cwd=ROOT, check=False,
        )  # fmt: skip
        worst, seed = max(worst, done.returncode), seed + 1
    return worst


def leaks(until: float) -> list[Reading]:
    """Batches of short streams through one gateway, up to the loop time ``until``; three at least."""
    readings: list[Reading] = []
    with (
        SimulatorProcess() as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"LOG_LEVEL": "ERROR"}) as stack,
    ):
        key = stack.api_key()
        gateway = psutil.Process(stack.gateway().pid)
        while len(readings) < 3 or time.monotonic() < until:
            job = Job(
                url=stack.gateway().url, key=key, model="sim-model", streams=BATCH, tokens=TOKENS,
                rate=RATE, label=f"leak {len(readings)}",
            )  # fmt: skip
            broken = [seen.fault for seen in Load(job).result().streams if not seen.whole]
            if broken:
                raise RuntimeError(f"{len(broken)} streams are not whole: {broken[0]}")
            readings.append(
                Reading(
                    streams=BATCH * (len(readings) + 1),
                    memory_kb=gateway.memory_info().rss / 1024,
                    files=gateway.num_fds(),
                    threads=gateway.num_threads(),
                )
            )
    return readings


def growth(readings: list[Reading]) -> float:
    """KB of memory that each stream has left behind: the slope of the least squares' line."""
    known = readings[int(len(readings) * WARM_UP) :]
    mean_x = sum(one.streams for one in known) / len(known)
    mean_y = sum(one.memory_kb for one in known) / len(known)
    spread = sum((one.streams - mean_x) ** 2 for one in known)
    return sum((one.streams - mean_x) * (one.memory_kb - mean_y) for one in known) / spread


def told(readings: list[Reading]) -> str:
    last: Any = readings[-1]
    return (
        f"{last.streams:,} streams: {readings[0].memory_kb / 1024:.0f} → {last.memory_kb / 1024:.0f} MB,"
        f" {growth(readings):.3f} KB a stream after warming up; files {readings[0].files} → {last.files},"
        f" threads {readings[0].threads} → {last.threads}"
    )


if __name__ == "__main__":
    sys.exit(main())
