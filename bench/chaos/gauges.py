"""What the engines say of themselves while a run lasts: read once a second, summed up at its end.

An engine that is killed loses its counters, so its figures are read all the time and what was
counted before a restart is kept. What was generated between the last reading and a kill is in no
figure of an engine.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.engines.exposition import Page, Reader, count, share

FILE = "engines.jsonl"
SECONDS = 1.0
TIMEOUT = 1.0

_VLLM = Reader(
    "vllm:",
    (
        "generation_tokens_total", "prompt_tokens_total", "num_requests_running",
        "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
    ),
)  # fmt: skip
_LLAMACPP = Reader(
    "llamacpp:",
    (
        "tokens_predicted_total", "prompt_tokens_total", "requests_processing",
        "requests_deferred", "kv_cache_usage_ratio",
    ),
)  # fmt: skip
_DCGM = Reader("DCGM_FI_DEV_", ("GPU_UTIL",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one engine said at one moment; None: it does not tell.

    ``generated`` and ``prompt`` are its counters of tokens, ``kv_usage`` and ``gpu`` shares from 0
    to 1, ``kv_tokens`` what its whole KV-cache holds.
    """

    engine: str
    at: float
    generated: float | None = None
    prompt: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    gpu: float | None = None


def reading_of(engine: str, at: float, metrics: bytes, gpu: bytes = b"") -> Reading:
    """The figures on an engine's ``/metrics`` page, and on that of the exporter of its GPUs."""
    vllm, llamacpp = _VLLM.read(metrics), _LLAMACPP.read(metrics)
    busy = _DCGM.read(gpu).values.get("GPU_UTIL")
    usage = vllm.highest("kv_cache_usage_perc")
    if usage is None:
        usage = llamacpp.highest("kv_cache_usage_ratio")

    def either(vllm_name: str, llamacpp_name: str) -> float | None:
        told = vllm.total(vllm_name)
        return llamacpp.total(llamacpp_name) if told is None else told

    return Reading(
        engine=engine,
        at=at,
        generated=either("generation_tokens_total", "tokens_predicted_total"),
        prompt=either("prompt_tokens_total", "prompt_tokens_total"),
        running=either("num_requests_running", "requests_processing"),
        waiting=either("num_requests_waiting", "requests_deferred"),
        kv_usage=share(usage),
        kv_tokens=_kv_tokens(vllm),
        gpu=sum(busy) / len(busy) / 100 if busy else None,
    )


def _kv_tokens(page: Page) -> int | None:
    told = page.labels.get("cache_config_info", [])
    try:
        sizes = [int(labels["num_gpu_blocks"]) * int(labels["block_size"]) for labels in told]
    except (KeyError, ValueError):
        return None
    return count(sum(sizes)) if sizes else None


def look(engine: str, url: str, exporter: str = "") -> Reading:
    """Ask an engine now. Raises ``OSError`` when it does not answer, ``ValueError`` for nonsense."""
    return reading_of(engine, time.time(), _page(f"{url}/metrics"), _page(exporter))


def _page(url: str) -> bytes:
    if not url:
        return b""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            page: bytes = answer.read()
            return page
    except http.client.HTTPException as exc:  # killed in the middle of its answer
        raise ConnectionResetError(str(exc)) from exc


class Gauges:
    """Reads the engines once a second from :meth:`__enter__` to :meth:`__exit__`, into the run's directory.

    with Gauges(directory, {"a": "http://127.0.0.1:8001"}):
        …

    ``engines``: base URL by the node's name; ``exporters``: the page of a node's DCGM exporter.
    """

    def __init__(
        self,
        directory: Path,
        engines: Mapping[str, str],
        exporters: Mapping[str, str] | None = None,
    ) -> None:
        self._engines = dict(engines)
        self._exporters = dict(exporters or {})
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._over = threading.Event()
        # A thread each: one that is frozen keeps only itself waiting.
        self._threads = [
            threading.Thread(target=self._follow, args=(name,), name=f"gauges {name}", daemon=True)
            for name in self._engines
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _follow(self, name: str) -> None:
        is_over = False
        pause = 0.0  # the first reading is what the counters begin from
        while not is_over:
            # The last reading is made when all is over: what came since the one before counts.
            is_over = self._over.wait(pause)
            pause = SECONDS
            try:
                reading = look(name, self._engines[name], self._exporters.get(name, ""))
            except (OSError, ValueError):  # dead, frozen or without figures: then there are none
                continue
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(reading)) + "\n")


def readings(directory: Path) -> list[Reading]:
    path = directory / FILE
    if not path.exists():
        return []
    return [Reading(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def summary(told: Iterable[Reading]) -> dict[str, dict[str, Any]]:
    """By engine what its readings come to. Figures that it never told are None.

    ``generated``, ``prompt``: tokens counted between the first and the last reading, restarts
    included. ``running``, ``kv_usage``, ``gpu``: means of the readings in which requests ran;
    ``running_max``, ``kv_usage_max``. ``kv_tokens_per_request``: occupied tokens of the KV-cache
    by request that runs.
    """
    by_engine: dict[str, list[Reading]] = {}
    for reading in told:
        by_engine.setdefault(reading.engine, []).append(reading)
    return {engine: _summary(of_one) for engine, of_one in by_engine.items()}


def _summary(told: list[Reading]) -> dict[str, Any]:
    told = sorted(told, key=lambda reading: reading.at)
    busy = [reading for reading in told if reading.running]
    held = [
        reading.kv_usage * reading.kv_tokens / reading.running
        for reading in busy
        if reading.kv_usage is not None and reading.kv_tokens is not None and reading.running
    ]
    return {
        "readings": len(told),
        "generated": counted(reading.generated for reading in told),
        "prompt": counted(reading.prompt for reading in told),
        "running": _mean(reading.running for reading in busy),
        "running_max": _most(reading.running for reading in told),
        "waiting_max": _most(reading.waiting for reading in told),
        "kv_usage": _mean(reading.kv_usage for reading in busy),
        "kv_usage_max": _most(reading.kv_usage for reading in told),
        "kv_tokens_per_request": sum(held) / len(held) if held else None,
        "gpu": _mean(reading.gpu for reading in busy),
    }


def counted(values: Iterable[float | None]) -> float | None:
    """How far a counter went that may have begun anew in between; None if it was never told."""
    total: float | None = None
    before = 0.0
    for value in values:
        if value is None:
            continue
        total = 0.0 if total is None else total + (value - before if value >= before else value)
        before = value
    return total


def _mean(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
