"""The cases without faults: first token, paced streams, saturation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.figures import first_token_ms, lags_ms, median, percentile, rate
from bench.load import Job, Load, StreamSeen
from bench.stacks import Bench

PACE = 20.0
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    repeats: int
    window: float
    """Seconds of a paced case that count, once all its streams run."""
    first_tokens: int
    saturated_tokens: int
    seam_repeats: int


FULL = Effort(repeats=3, window=8.0, first_tokens=60, saturated_tokens=6000, seam_repeats=3)
QUICK = Effort(repeats=1, window=4.0, first_tokens=20, saturated_tokens=2000, seam_repeats=1)


def repeated(times: int, measure: Callable[[], Figures]) -> dict[str, Any]:
    """The median of each figure over the repeats, and all of them."""
    runs = [measure() for _ in range(times)]
    return {**{name: median([run[name] for run in runs]) for name in runs[0]}, "runs": runs}


def first_token(bench: Bench, effort: Effort) -> dict[str, Any]:
    """One stream at a time, on an idle gateway."""

    def measure() -> Figures:
        figures: Figures = {}
        for way, url, key in _ways(bench, bench.paced.url):
            job = Job(
                url=url, key=key, model="paced", streams=effort.first_tokens, tokens=2, rate=8.0,
                label=f"first {time.time_ns()}",
            )  # fmt: skip
            times = first_token_ms(_finished(Load(job).result().streams))
            figures |= {
                f"{way}_ttft_p50": median(times),
                f"{way}_ttft_p99": percentile(times, 99),
            }
        return figures | {"added_p50": figures["gateway_ttft_p50"] - figures["direct_ttft_p50"]}

    return repeated(effort.repeats, measure)


def paced(bench: Bench, streams: int, effort: Effort) -> dict[str, Any]:
    """``streams`` at once, each of 20 tokens a second; measured while all of them run."""

    def measure() -> Figures:
        figures: Figures = {}
        for way, url, key in _ways(bench, bench.paced.url):
            figures |= {
                f"{way}_{name}": value
                for name, value in _paced(bench, url, key, streams, effort).items()
            }
        return figures | {
            "added_ttft_p50": figures["gateway_ttft_p50"] - figures["direct_ttft_p50"],
            "added_lag_p50": figures["gateway_lag_p50"] - figures["direct_lag_p50"],
            "added_lag_p99": figures["gateway_lag_p99"] - figures["direct_lag_p99"],
        }

    return repeated(effort.repeats, measure)


def websocket(bench: Bench, effort: Effort, streams: int = 200) -> dict[str, Any]:
    """``streams`` paced ones over WebSockets, against as many over SSE."""

    def measure() -> Figures:
        figures: Figures = {}
        for way in ("sse", "websocket"):
            seen = _paced(
                bench, bench.stack.gateway().url, bench.key, streams, effort, way == "websocket"
            )
            figures |= {f"{way}_{name}": value for name, value in seen.items()}
        return figures

    return repeated(effort.repeats, measure)


def _paced(
    bench: Bench, url: str, key: str, streams: int, effort: Effort, websocket: bool = False
) -> Figures:
    rate_of_starts = max(1.0, min(40.0, streams / 2))
    ramp = streams / rate_of_starts
    settle = 2.0
    seconds = ramp + settle + effort.window + 1.0
    job = Job(
        url=url, key=key, model="paced", streams=streams, tokens=int(seconds * PACE),
        rate=rate_of_starts, label=f"paced {time.time_ns()}", websocket=websocket,
    )  # fmt: skip
    load = Load(job)
    time.sleep(ramp + settle)
    begin = time.time()
    gateway, postgres = bench.gateway_cpu.restart(), bench.postgres_cpu.restart()
    time.sleep(effort.window)
    gateway_cpu, postgres_cpu, waited = gateway.seconds(), postgres.seconds(), gateway.waited()
    end = time.time()
    result = load.result()
    asked = _asked_at(bench, result.streams) if key else {}
    lags: list[float] = []
    for seen in result.streams:
        lags += lags_ms(seen, asked.get(seen.session, seen.sent), PACE, begin, end)
    figures = {
        "ttft_p50": median(first_token_ms(result.streams)),
        "ttft_p99": percentile(first_token_ms(result.streams), 99),
        "lag_p50": median(lags),
        "lag_p99": percentile(lags, 99),
        "lag_max": max(lags),
        "tokens_due_per_second": len(lags) / (end - begin),
        "whole": sum(seen.whole for seen in result.streams),
    }
    if key:
        figures |= {
            "cpu_us_per_token": gateway_cpu / len(lags) * 1e6,
            "cpu_share": gateway_cpu / (end - begin),
            "cpu_waited": waited / (end - begin),
            "postgres_us_per_token": postgres_cpu / len(lags) * 1e6,
        }
    return figures


def saturated(bench: Bench, effort: Effort, streams: int = 50) -> dict[str, Any]:
    """An engine without pace: as many tokens a second as will go through."""

    def measure() -> Figures:
        figures: Figures = {}
        for way, url, key in _ways(bench, bench.fast.url):
            job = Job(
                url=url, key=key, model="fast", streams=streams, tokens=effort.saturated_tokens,
                rate=1000.0, label=f"saturated {time.time_ns()}",
            )  # fmt: skip
            gateway, postgres = bench.gateway_cpu.restart(), bench.postgres_cpu.restart()
            seen = _finished(Load(job).result().streams)
            per_second, seconds, tokens = rate(seen)
            figures |= {f"{way}_tokens_per_second": per_second, f"{way}_whole": len(seen)}
            if key:
                figures |= {
                    "gateway_cpu_us_per_token": gateway.seconds() / tokens * 1e6,
                    "gateway_cpu_share": gateway.seconds() / seconds,
                    "gateway_cpu_waited": gateway.waited() / seconds,
                    "gateway_postgres_us_per_token": postgres.seconds() / tokens * 1e6,
                }
        ratio = figures["gateway_tokens_per_second"] / figures["direct_tokens_per_second"]
        return figures | {"ratio": ratio}

    return repeated(effort.repeats, measure)


def _ways(bench: Bench, engine: str) -> list[tuple[str, str, str]]:
    return [("direct", engine, ""), ("gateway", bench.stack.gateway().url, bench.key)]


def _finished(streams: list[StreamSeen]) -> list[StreamSeen]:
    broken = [seen.fault for seen in streams if not seen.whole]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(streams)} streams are not whole: {broken[0]}")
    return streams


def _asked_at(bench: Bench, streams: list[StreamSeen]) -> dict[str, float]:
    """When the gateway asked the engine for each session: there its schedule begins."""
    rows = bench.stack.sql(
        "SELECT session_id::text, extract(epoch FROM started_at)::float8 FROM streaming_attempt"
        " WHERE number = 1 AND session_id = ANY(%s::uuid[])",
        [seen.session for seen in streams],
    )
    return dict(rows)
