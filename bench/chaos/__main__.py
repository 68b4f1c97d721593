"""``python -m bench.chaos --preset full``: hurt a cluster under its readers, and report.

Exit code 1: a reader that comes back lost its answer, got a wrong byte, or was billed wrongly.
"""

from __future__ import annotations

import signal
import sys

from bench.chaos import report
from bench.chaos.options import parse
from bench.chaos.run import run
from bench.chaos.verdict import broken_promises


def main() -> int:
    # A run that is told to end does so as with Ctrl-C, and reports what there was.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    directory = run(parse())
    print(report.write(directory))
    broken = broken_promises(directory)
    print(*broken, sep="\n", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
