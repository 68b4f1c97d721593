"""The report of a run: text, JSON and a page, from what is in its directory.

``python -m bench.chaos.report DIR`` makes it anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.chaos import page
from bench.chaos.directory import figures_of
from bench.chaos.findings import Finding, findings
from bench.chaos.modes import as_text as modes_as_text
from bench.chaos.modes import mode_rows


def write(directory: Path) -> str:
    """Make ``report.json`` and ``report.html`` in ``directory``; returns the report as text."""
    figures = figures_of(directory)
    lines = findings(figures)
    rows = mode_rows([figures])
    report = {
        "findings": [line._asdict() for line in lines],
        "modes": [row.as_json() for row in rows],
        "figures": figures,
    }
    (directory / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (directory / "report.html").write_text(page.render(figures, lines, rows), encoding="utf-8")
    return as_text(figures, lines) + "\n\n" + modes_as_text(rows)


def as_text(figures: dict[str, Any], lines: list[Finding]) -> str:
    run = figures["run"]
    machine = run["machine"]
    head = (
        f"Chaos run {run['name']!r}, seed {run['seed']}, {run['cluster']},"
        f" {run['seconds']:.0f} s, {machine.get('date', 'no date')},"
        f" commit {machine.get('commit', 'unknown')}"
    )
    width = max(len(line.what) for line in lines)
    marks = {None: "", True: "met", False: "MISSED"}
    table = [
        f"{line.what:<{width}}  {line.value}"
        + (f"  [goal {line.goal}: {marks[line.met]}]" if line.goal else "")
        for line in lines
    ]
    return "\n".join([head, *table])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR")
    for run in parser.parse_args().runs:
        print(write(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
