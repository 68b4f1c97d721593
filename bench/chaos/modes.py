"""The modes beside each other: not streamed, streamed without protection, streamed by Unbroken.

``python -m bench.chaos.modes DIR… [--markdown | --html]`` makes one table of several runs; those of
different rates give one row for each rate.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.chaos.directory import figures_of
from bench.chaos.findings import NOT_TOLD, ms, percent
from bench.chaos.statistics import Rate, rate

TITLES = {
    "unstreamed": "not streamed",
    "unprotected": "streamed, without protection",
    "unbroken": "streamed by Unbroken",
}
"""In the order of the table."""
_GROUPS = {
    "unbroken": ("plain_engines", "plain_others", "returning"),
    "unprotected": ("unprotected",),
    "unstreamed": ("unstreamed",),
}
HEADS = (
    "mode", "QPS (all modes)", "streams", "first token p99", "whole answer p99", "per token p99",
    "interrupted", "at most, 95 %", "delivery ratio", "useful tokens", "billing accuracy",
    "GPU", "KV of a request",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRow:
    """One mode in one run; None: nobody tells. Times in milliseconds, of whole answers."""

    run: str
    mode: str
    qps: float | None
    """Streams of this mode that began in a second."""
    qps_all: float | None
    streams: int
    first_p99: float | None
    total_p99: float | None
    token_p99: float | None
    """Time per token, mean of a stream."""
    interrupted: Rate
    delivery_ratio: float | None
    whole_ratio: float | None
    billing: float | None
    """Of the gateway's readers who stayed."""
    gpu: float | None
    kv_tokens: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> list[str]:
        """In the order of ``HEADS``."""
        both = f"{_plain(self.qps)} ({_plain(self.qps_all)})"
        return [
            TITLES[self.mode],
            both,
            f"{self.streams:,}",
            ms(self.first_p99) if self.mode != "unstreamed" else "–",
            ms(self.total_p99),
            ms(self.token_p99) if self.mode != "unstreamed" else "–",
            f"{self.interrupted.hits:,} ({percent(self.interrupted.share)})",
            percent(self.interrupted.upper),
            percent(self.delivery_ratio),
            percent(self.whole_ratio),
            percent(self.billing) if self.mode == "unbroken" else "–",
            percent(self.gpu),
            NOT_TOLD if self.kv_tokens is None else f"{self.kv_tokens:,.0f} tokens",
        ]


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def mode_rows(runs: Iterable[Mapping[str, Any]]) -> list[ModeRow]:
    """From the figures of runs: by mode, and by rate in each."""
    rows = [
        _row(figures, mode) for figures in runs for mode in TITLES if mode in figures["streams"]
    ]
    order = list(TITLES)
    return sorted(rows, key=lambda row: (order.index(row.mode), row.qps_all or 0.0))


def _row(figures: Mapping[str, Any], mode: str) -> ModeRow:
    times = figures["times"][mode]
    groups = [figures["interruptions"].get(name) for name in _GROUPS[mode]]
    hits = sum(group["hits"] for group in groups if group)
    trials = sum(group["trials"] for group in groups if group)
    tokens = figures["tokens"]["modes"][mode]
    stayed = [
        figures["tokens"]["billing"][kind] for kind in ("acking", "resuming", "plain")
    ]  # fmt: skip
    settled = sum(billed["streams"] for billed in stayed)
    engines = [told for told in figures["engines"].values() if told]
    rates = [figures["times"][other]["qps"] for other in figures["times"]]
    known = [qps for qps in rates if qps is not None]
    return ModeRow(
        run=figures["run"]["name"],
        mode=mode,
        qps=times["qps"],
        qps_all=sum(known) if known else None,
        streams=figures["streams"][mode],
        first_p99=times["first_ms"]["p99"],
        total_p99=times["total_ms"]["p99"],
        token_p99=times["token_ms"]["p99"],
        interrupted=rate(hits, trials),
        delivery_ratio=tokens["delivery_ratio"],
        whole_ratio=tokens["whole_ratio"],
        billing=sum(billed["equal"] for billed in stayed) / settled if settled else None,
        gpu=_mean(told["gpu"] for told in engines),
        kv_tokens=_mean(told["kv_tokens_per_request"] for told in engines),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def as_text(rows: list[ModeRow]) -> str:
    table = [list(HEADS), *(row.cells() for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(HEADS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def as_markdown(rows: list[ModeRow]) -> str:
    table = [HEADS, ["---"] * len(HEADS), *(row.cells() for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table
    )


def as_html(rows: list[ModeRow]) -> str:
    """A ``<table>``, without a page around it: modes in columns, so that a few fit on any screen."""
    heads = "".join(f'<th scope="col">{html.escape(row.cells()[0])}</th>' for row in rows)
    lines = []
    for at, head in enumerate(HEADS[1:], 1):
        cells = "".join(f"<td>{html.escape(row.cells()[at])}</td>" for row in rows)
        lines.append(f'<tr><th scope="row">{html.escape(head)}</th>{cells}</tr>')
    return (
        f"<table><caption>Modes beside each other</caption>"
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.modes", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true")
    form.add_argument("--html", action="store_true")
    chosen = parser.parse_args()
    rows = mode_rows([figures_of(directory) for directory in chosen.directories])
    render = as_markdown if chosen.markdown else as_html if chosen.html else as_text
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
