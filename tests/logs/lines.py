"""Reading a log that is JSON."""

from __future__ import annotations

import json
import re
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
Entry = dict[str, Any]


def entries(log: str) -> list[Entry]:
    """Every line of it. Asserts that each is a record, and in ASCII."""
    assert log.isascii()
    return [_entry(line) for line in log.splitlines()]


def _entry(line: str) -> Entry:
    entry = json.loads(line)
    assert TIME.fullmatch(entry["time"]), line
    for name in ("level", "logger", "message"):
        assert isinstance(entry[name], str), line
    return entry
