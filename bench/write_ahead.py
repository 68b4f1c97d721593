"""What it costs that no token is shown before it is durable: the same with a gateway that writes none."""

from __future__ import annotations

from typing import Any

from bench import measure
from bench.measure import Effort
from bench.stacks import bench

UNWRITTEN = ("--runtime", "bench.unwritten:start")


def write_ahead(postgres_pid: int, effort: Effort) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, arguments in (("written", ()), ("unwritten", UNWRITTEN)):
        with bench(postgres_pid, measure.PACE, arguments) as running:
            saturated = measure.saturated(running, effort)
            paced = measure.paced(running, 200, effort)
        figures |= {
            f"{name}_ratio": saturated["ratio"],
            f"{name}_tokens_per_second": saturated["gateway_tokens_per_second"],
            f"{name}_lag_p50": paced["gateway_lag_p50"],
            f"{name}_lag_p99": paced["gateway_lag_p99"],
            f"{name}_cpu_us_per_token": paced["gateway_cpu_us_per_token"],
        }
    return figures
