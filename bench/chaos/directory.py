"""The figures of what lies in a run's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.chaos import evidence, records
from bench.chaos.figures import compute


def figures_of(directory: Path) -> dict[str, Any]:
    """The figures of the run in ``directory``.

    Raises ``FileNotFoundError`` where there is none, or one that was broken off.
    """
    values = json.loads((directory / "run.json").read_text("utf-8"))
    known = records.Run.__slots__  # other versions have written more, or less
    run = records.Run(**{name: value for name, value in values.items() if name in known})
    told = {session.session: session for session in evidence.sessions(directory)}
    streams = records.streams(directory) if (directory / "streams.jsonl").exists() else ()
    return compute(run, streams, records.faults(directory), told, evidence.evidence(directory))
