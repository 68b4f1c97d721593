"""``python -m bench [--quick] [--only NAME] [--profile]``: measure, print, store.

The engine is simulated (``tests/engine_simulator``) and runs on the same machine as everything
else: compare the two ways within a run, not runs on different machines. ``docs/performance.md``
explains the method.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import measure, report
from bench.desk import desk, export
from bench.idle import idle
from bench.prefix_cache import prefix_cache
from bench.processes import processes
from bench.profile import profiled
from bench.seam import seam
from bench.silent import drained, frozen
from bench.stacks import Bench, bench, machine, start_durable_services
from bench.write_ahead import write_ahead

STREAMS = (1, 50, 200, 500)
CASES: dict[str, Callable[[Bench, measure.Effort], dict[str, Any]]] = {
    "first": measure.first_token,
    **{
        f"paced-{count}": lambda bench, effort, count=count: measure.paced(bench, count, effort)
        for count in STREAMS
    },
    "saturated": measure.saturated,
    "websocket": measure.websocket,
}
APART: dict[str, Callable[[measure.Effort], dict[str, Any]]] = {
    "seam": seam,
    "frozen": frozen,
    "drained": drained,
    "idle": idle,
    "processes": processes,
    "prefix": prefix_cache,
    "desk": desk,
    "export": export,
}
"""Cases with processes of their own."""
WRITE_AHEAD = "journal"
NAMES = (*CASES, WRITE_AHEAD, *APART)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once, and briefly")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help=str(NAMES))
    parser.add_argument(
        "--profile",
        action="store_true",
        help="look into the gateway with py-spy meanwhile; not in cases with processes of their own",
    )
    options = parser.parse_args()
    effort = measure.QUICK if options.quick else measure.FULL
    names = options.only or NAMES
    facts = machine(Path(tempfile.gettempdir()))
    results: dict[str, dict[str, Any]] = {}

    def note(name: str, figures: dict[str, Any]) -> None:
        results[name] = figures
        print(report.as_text(report.rows_of({name: figures})), flush=True)

    postgres_pid = start_durable_services()
    if any(name in CASES for name in names):
        with bench(postgres_pid, measure.PACE) as running:
            for name in (name for name in names if name in CASES):
                with ExitStack() as profile:
                    if options.profile:
                        path = (
                            report.RESULTS
                            / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.speedscope.json"
                        )
                        profile.enter_context(profiled(running.stack.gateway().pid, path))
                        print(path)
                    note(name, CASES[name](running, effort))
    if WRITE_AHEAD in names:
        note(WRITE_AHEAD, write_ahead(postgres_pid, effort))
    for name in (name for name in names if name in APART):
        note(name, APART[name](effort))
    markdown = report.as_markdown(report.rows_of(results), facts)
    print(f"\n{report.store(results, facts, markdown)}")


if __name__ == "__main__":
    main()
