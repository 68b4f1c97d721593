"""``python -m bench.chaos --preset full``: hurt a cluster under its readers, and report.

Exit code 1: a reader that comes back lost its answer, got a wrong byte, or was billed wrongly.
"""

from __future__ import annotations

import sys

from bench.chaos.options import parse
from bench.chaos.run import run


def main() -> int:
    directory = run(parse())
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
