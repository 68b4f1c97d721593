"""One and two gateway processes behind one listening socket, as ``manage.py serve`` starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from bench.figures import lags_ms, median, percentile
from bench.load import Job, Load
from bench.measure import PACE, Effort, Figures, repeated
from gateway_project.embedded.process import free_port, spawn, wait_until_ready
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Stack

STREAMS = 500
RATE = 40.0
SETTLE = 2.0


def processes(effort: Effort) -> dict[str, Any]:
    """500 paced streams: directly, through one process, through two; and how these share them."""
    return repeated(effort.repeats, lambda: _measure(effort))


def _measure(effort: Effort) -> Figures:
    figures: Figures = {}
    with SimulatorProcess(pace=PACE) as engine:
        seen, _ = _lags(engine.url, "", effort)
        figures |= {"direct_lag_p50": median(seen), "direct_lag_p99": percentile(seen, 99)}
        for count in (1, 2):
            with _served(engine, count) as (stack, url, key):
                seen, whole = _lags(url, key, effort, stack)
                shares = [
                    share
                    for (share,) in stack.sql(
                        "SELECT count(*)::float8 / sum(count(*)) OVER () FROM streaming_streamsession"
                        " GROUP BY owner_id"
                    )
                ]
            figures |= {
                f"gateways_{count}_lag_p50": median(seen),
                f"gateways_{count}_lag_p99": percentile(seen, 99),
                f"gateways_{count}_whole": whole,
                f"gateways_{count}_most": max(shares),
                f"gateways_{count}_least": min(shares) if len(shares) == count else 0.0,
            }
    return figures


@contextmanager
def _served(engine: SimulatorProcess, count: int) -> Iterator[tuple[Stack, str, str]]:
    """``manage.py serve`` with ``count`` gateways on a database of its own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Stack(gateways=0, engine_nodes=[f"a=vllm+{engine.url}"]) as stack:
        with (stack.directory / "serve.log").open("wb") as log:
            process = spawn(
                [
                    *(sys.executable, "manage.py", "serve", "--port", str(port)),
                    *("--processes", str(count)),
                ],
                env={**stack.env(), "LOG_LEVEL": "WARNING"},
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

        def is_ready() -> bool:
            try:
                return httpx.get(f"{url}/readyz").json()["status"] == "ok"
            except (httpx.HTTPError, json.JSONDecodeError, KeyError):
                return False

        try:
            wait_until_ready(process, is_ready, name="serve", seconds=60, pause=time.sleep)
            yield stack, url, stack.api_key()
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _lags(
    url: str, key: str, effort: Effort, stack: Stack | None = None
) -> tuple[list[float], float]:
    """How late each token was, in ms, while all streams ran; and how many of them were whole."""
    seconds = STREAMS / RATE + SETTLE + effort.window + 1.0
    job = Job(
        url=url, key=key, model="sim-model", streams=STREAMS, tokens=int(seconds * PACE), rate=RATE,
        label=f"processes {time.time_ns()}",
    )  # fmt: skip
    load = Load(job)
    time.sleep(STREAMS / RATE + SETTLE)
    begin = time.time()
    time.sleep(effort.window)
    end = time.time()
    streams = load.result().streams
    asked: dict[str, float] = {}
    if stack is not None:
        asked = dict(
            stack.sql(
                "SELECT session_id::text, extract(epoch FROM started_at)::float8"
                " FROM streaming_attempt WHERE number = 1"
            )
        )
    lags: list[float] = []
    for one in streams:
        lags += lags_ms(one, asked.get(one.session, one.sent), PACE, begin, end)
    return lags, sum(one.whole for one in streams)
