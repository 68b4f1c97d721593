"""A process that exports a month, and tells what that took.

``python -m tests.billing.exports.million FORMAT`` exports November 2026 of the database that the
environment names and prints, as JSON, how long it took and the most memory that it had.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def peak_mib() -> int:
    """The most memory that this program has had resident. (``ru_maxrss`` is also its parent's.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("the kernel does not say")


def main(format: str) -> None:
    import django

    django.setup()
    from billing.exports.run import export

    began = time.monotonic()
    made = export(period_name="2026-11", format=format, actor="system")
    figures = {
        "id": str(made.pk),
        "seconds": time.monotonic() - began,
        "cpu": time.process_time(),
        "peak": peak_mib(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
