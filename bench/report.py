"""Figures as a table for the terminal and for ``docs/performance.md``, and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results"


class Row(NamedTuple):
    """One line: what, its value, and what it should be (empty: no goal)."""

    what: str
    value: str
    goal: str = ""
    met: bool | None = None


def rows_of(results: dict[str, dict[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for name, figures in results.items():
        kind, _, number = name.partition("-")
        rows += _KINDS[kind](figures, int(number or 0))
    return rows


def _first(f: dict[str, Any], _: int) -> list[Row]:
    return [
        Row(
            "time to first token, idle: direct / gateway / added (p50)",
            f"{f['direct_ttft_p50']:.1f} / {f['gateway_ttft_p50']:.1f} / {f['added_p50']:.1f} ms",
        )
    ]


def _paced(f: dict[str, Any], streams: int) -> list[Row]:
    head = f"{streams} streams of 20 tokens/s"
    over = f["added_lag_p99"]
    most = {200: 20, 500: 100}.get(streams)
    goal = (f"p99 ≤ {most} ms over direct", over <= most) if most else ("", None)
    cheap = ("≤ 100 µs", f["gateway_cpu_us_per_token"] <= 100) if streams >= 200 else ("", None)
    every = ("all", f["gateway_whole"] == streams) if streams == 500 else ("", None)
    return [
        Row(
            f"{head}: lag p50, direct → gateway",
            f"{f['direct_lag_p50']:.1f} → {f['gateway_lag_p50']:.1f} ms",
        ),
        Row(
            f"{head}: lag p99, direct → gateway",
            f"{f['direct_lag_p99']:.1f} → {f['gateway_lag_p99']:.1f} ms ({over:+.1f})",
            *goal,
        ),
        Row(f"{head}: added to the first token (p50)", f"{f['added_ttft_p50']:.1f} ms"),
        Row(
            f"{head}: processor per token, gateway + PostgreSQL",
            f"{f['gateway_cpu_us_per_token']:.0f} + {f['gateway_postgres_us_per_token']:.0f} µs"
            f" (gateway {f['gateway_cpu_share']:.0%} of a core, kept waiting"
            f" {f['gateway_cpu_waited']:.0%})",
            *cheap,
        ),
        Row(f"{head}: whole answers", f"{f['gateway_whole']:.0f} of {streams}", *every),
    ]


def _saturated(f: dict[str, Any], _: int) -> list[Row]:
    return [
        Row(
            "saturated, 50 streams: tokens/s, direct → gateway",
            f"{f['direct_tokens_per_second']:,.0f} → {f['gateway_tokens_per_second']:,.0f}",
        ),
        Row("saturated: share of direct", f"{f['ratio']:.2f}", "≥ 0.5", f["ratio"] >= 0.5),
        Row(
            "saturated: processor per token, gateway + PostgreSQL",
            f"{f['gateway_cpu_us_per_token']:.1f} + {f['gateway_postgres_us_per_token']:.1f} µs"
            f" (gateway kept waiting {f['gateway_cpu_waited']:.0%})",
        ),
    ]


def _seam(f: dict[str, Any], _: int) -> list[Row]:
    return [
        Row("node killed under 100 streams: gap beyond the pace, p50", f"{f['gap_p50']:.0f} ms",
            "≤ 25 ms", f["gap_p50"] <= 25),
        Row("node killed: gap p99", f"{f['gap_p99']:.0f} ms", "≤ 150 ms", f["gap_p99"] <= 150),
        Row("node killed: longest gap", f"{f['gap_max']:.0f} ms"),
        Row("the same, nothing killed: p99", f"{f['usual_gap_p99']:.0f} ms"),
        Row("an idle engine asked by 100 at once: first token p50 / p99",
            f"{f['burst_p50']:.0f} / {f['burst_p99']:.0f} ms"),
        Row("the killed process's sockets are closed after", f"{f['closed']:.1f} ms"),
        Row("crash noticed after, p50", f"{f['noticed_p50']:.1f} ms"),
        Row("crash noticed after, slowest stream", f"{f['noticed_max']:.1f} ms", "≤ 50 ms",
            f["noticed_max"] <= 50),
        Row("whole answers / exact seams", f"{f['whole']:.0f} / {f['exact']:.0f}", "100 / 100",
            f["whole"] == 100 and f["exact"] == 100),
    ]  # fmt: skip


def _frozen(f: dict[str, Any], _: int) -> list[Row]:
    head = f"one of two nodes frozen under 50 streams ({f['moved']:.0f} on it)"
    return [
        Row(f"{head}: gap beyond the pace, p50", f"{f['gap_p50']:.0f} ms"),
        Row(f"{head}: gap p99", f"{f['gap_p99']:.0f} ms", "≤ 1000 ms", f["gap_p99"] <= 1000),
        Row(f"{head}: hedges / failovers", f"{f['hedges']:.0f} / {f['failovers']:.0f}"),
        Row(f"{head}: whole answers", f"{f['whole']:.0f}", "50", f["whole"] == 50),
    ]


def _drained(f: dict[str, Any], _: int) -> list[Row]:
    head = f"one of two nodes drained under 50 streams ({f['moved']:.0f} on it)"
    return [
        Row(f"{head}: gap beyond the pace, p50", f"{f['gap_p50']:.0f} ms"),
        Row(f"{head}: gap p99", f"{f['gap_p99']:.0f} ms", "≤ 300 ms", f["gap_p99"] <= 300),
        Row(f"{head}: whole answers", f"{f['whole']:.0f}", "50", f["whole"] == 50),
    ]


def _idle(f: dict[str, Any], _: int) -> list[Row]:
    head = "2,000 streams that are silent"
    return [
        Row(f"{head}: memory each", f"{f['kb_per_stream']:.1f} KB", "≤ 60 KB",
            f["kb_per_stream"] <= 60),
        Row(f"{head}: files each", f"{f['files_per_stream']:.2f}"),
        Row(f"{head}: processor at rest", f"{f['cpu_share']:.0%} of a core"),
        Row(f"{head}: alive at the end", f"{f['live']:.0f}", "2000", f["live"] == 2000),
        Row(f"{head}: the longest that one heard nothing", f"{f['silence_max']:.1f} s"),
    ]  # fmt: skip


def _websocket(f: dict[str, Any], _: int) -> list[Row]:
    head = "200 streams of 20 tokens/s, SSE → WebSocket"
    return [
        Row(f"{head}: lag p50", f"{f['sse_lag_p50']:.1f} → {f['websocket_lag_p50']:.1f} ms"),
        Row(f"{head}: lag p99", f"{f['sse_lag_p99']:.1f} → {f['websocket_lag_p99']:.1f} ms"),
        Row(
            f"{head}: gateway's processor per token",
            f"{f['sse_cpu_us_per_token']:.0f} → {f['websocket_cpu_us_per_token']:.0f} µs",
        ),
        Row(f"{head}: whole", f"{f['sse_whole']:.0f} → {f['websocket_whole']:.0f}", "200 → 200",
            f["sse_whole"] == f["websocket_whole"] == 200),
    ]  # fmt: skip


def _journal(f: dict[str, Any], _: int) -> list[Row]:
    head = "tokens written ahead → not written"
    return [
        Row(
            f"{head}: saturated, share of direct",
            f"{f['written_ratio']:.2f} → {f['unwritten_ratio']:.2f}",
        ),
        Row(
            f"{head}: 200 streams, lag p50",
            f"{f['written_lag_p50']:.1f} → {f['unwritten_lag_p50']:.1f} ms",
        ),
        Row(
            f"{head}: 200 streams, lag p99",
            f"{f['written_lag_p99']:.1f} → {f['unwritten_lag_p99']:.1f} ms",
        ),
        Row(
            f"{head}: 200 streams, gateway's processor per token",
            f"{f['written_cpu_us_per_token']:.0f} → {f['unwritten_cpu_us_per_token']:.0f} µs",
        ),
    ]


def _processes(f: dict[str, Any], _: int) -> list[Row]:
    head = "500 streams by `serve`, 1 → 2 gateway processes"
    uneven = f["gateways_2_most"] - 0.5
    return [
        Row(
            f"{head}: lag p50 (direct {f['direct_lag_p50']:.1f} ms)",
            f"{f['gateways_1_lag_p50']:.1f} → {f['gateways_2_lag_p50']:.1f} ms",
        ),
        Row(
            f"{head}: lag p99 (direct {f['direct_lag_p99']:.1f} ms)",
            f"{f['gateways_1_lag_p99']:.1f} → {f['gateways_2_lag_p99']:.1f} ms",
        ),
        Row(f"{head}: whole", f"{f['gateways_1_whole']:.0f} → {f['gateways_2_whole']:.0f}",
            "500 → 500", f["gateways_1_whole"] == f["gateways_2_whole"] == 500),
        Row("… how the two share the streams",
            f"{f['gateways_2_least']:.0%} and {f['gateways_2_most']:.0%}",
            "within 20 % of half", uneven <= 0.1 and f["gateways_2_least"] > 0),
    ]  # fmt: skip


def _prefix(f: dict[str, Any], _: int) -> list[Row]:
    head = f"llama.cpp, prompt of {f['prompt_tokens']} tokens"
    return [
        Row(
            f"{head}: continuation to first token, not in → in the prefix cache",
            f"{f['miss_p50']:.0f} → {f['hit_p50']:.0f} ms ({f['cached_p50']:.0f} tokens cached)",
        ),
        Row(
            f"{head}: the engine alone, the same",
            f"{f['direct_miss_p50']:.0f} → {f['direct_hit_p50']:.0f} ms",
        ),
    ]


def _desk(f: dict[str, Any], _: int) -> list[Row]:
    head = "100,000 sessions: interrupted sessions"
    return [
        Row(
            f"{head}, the newest / one user's / a page without anything",
            f"{f['list_p50']:.0f} / {f['searched_p50']:.0f} / {f['nothing_p50']:.1f} ms",
        )
    ]


def _export(f: dict[str, Any], _: int) -> list[Row]:
    return [
        Row(
            f"export of 50,000 lines, {format}",
            f"{f[f'{format}_lines_per_second']:,.0f} lines/s, peak {f[f'{format}_peak_mib']} MiB",
        )
        for format in ("csv", "parquet")
    ]


_KINDS: dict[str, Callable[[dict[str, Any], int], list[Row]]] = {
    "first": _first,
    "paced": _paced,
    "saturated": _saturated,
    "seam": _seam,
    "frozen": _frozen,
    "drained": _drained,
    "idle": _idle,
    "websocket": _websocket,
    "journal": _journal,
    "processes": _processes,
    "prefix": _prefix,
    "desk": _desk,
    "export": _export,
}


def as_text(rows: list[Row]) -> str:
    width = max(len(row.what) for row in rows)
    marks = {None: "", True: "met", False: "MISSED"}
    lines = [
        f"{row.what:<{width}}  {row.value:<40}  {row.goal:<24} {marks[row.met]}".rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def as_markdown(rows: list[Row], machine: dict[str, Any]) -> str:
    marks = {None: "", True: "met", False: "**missed**"}
    lines = [
        f"Measured {machine['date']} at commit {machine['commit']}, on {machine['cores']} cores of "
        f"{machine['cpu']}, Linux {machine['kernel'].split('-')[0]}, Python {machine['python']}; a "
        f"synchronous write takes {machine['fsync_ms']} ms.",
        "",
        "| what | value | goal | |",
        "|---|---|---|---|",
        *(f"| {row.what} | {row.value} | {row.goal} | {marks[row.met]} |" for row in rows),
    ]
    return "\n".join(lines)


def store(results: dict[str, Any], machine: dict[str, Any], markdown: str) -> Path:
    """Write ``results/<time>.json`` and ``.md``; returns the path of the first."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    path.with_suffix(".md").write_text(markdown + "\n")
    return path
