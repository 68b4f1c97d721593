"""Where a process spends its time: py-spy looks at it while a case runs.

Looking costs something, so the figures of a profiled run are not worth keeping.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOKS_PER_SECOND = 200


@contextmanager
def profiled(pid: int, path: Path) -> Iterator[None]:
    """Write a profile of the process ``pid`` over the block to ``path``, for speedscope.app.

    Samples in which it only waits are left out. Raises ``RuntimeError`` without py-spy, or without
    the right to look into another process (root, or ``kernel.yama.ptrace_scope=0``).
    """
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        raise RuntimeError("py-spy is missing: pip install -r requirements-dev.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [
            *(str(program), "record", "--pid", str(pid), "--rate", str(LOOKS_PER_SECOND)),
            *("--format", "speedscope", "--output", str(path)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    if not path.exists():
        raise RuntimeError(f"py-spy wrote no profile: {errors.strip()}")
