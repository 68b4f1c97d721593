"""The directory in which all processes of one machine keep their metrics (multiprocess mode).

``PROMETHEUS_MULTIPROC_DIR`` names it; ``serve`` makes one for its children. Without it a process
speaks for itself only. It must not be shared between machines or containers: pids tell the files
of different processes apart, and whether they are alive.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
LOCK_SECONDS = 1.0
RETIRED = "retired"
"""In place of a pid: what dead processes had counted."""

_FILE = re.compile(r"(counter|histogram|gauge)_(?:[a-z]+_)?(\d+)\.db")


def path() -> Path | None:
    """None: this process is on its own."""
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def claim() -> None:
    """Make the directory ours: gauges of a dead process that had our pid are none of ours."""
    directory = path()
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        forget_gauges(directory, os.getpid())


def pids(directory: Path) -> set[int]:
    """Whose files there are."""
    return {int(found[2]) for file in directory.iterdir() if (found := _FILE.fullmatch(file.name))}


def forget_gauges(directory: Path, pid: int) -> None:
    """The process is dead: what it had at the moment of its death is not there any more."""
    for file in directory.glob(f"gauge_*_{pid}.db"):
        file.unlink(missing_ok=True)


def bury_dead(directory: Path) -> None:
    """Forget the gauges of all processes that are dead; keep what they counted, in one place.

    Call it within ``locked``: in between, a counter would be there twice or not at all.
    """
    for pid in pids(directory):
        if not _is_alive(directory, pid):
            forget_gauges(directory, pid)
            for kind in ("counter", "histogram"):
                file = directory / f"{kind}_{pid}.db"
                if file.exists():
                    _retire(file, directory / f"{kind}_{RETIRED}.db")


@contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """One scrape at a time; False: somebody has held the lock for long, perhaps frozen."""
    with (directory / "lock").open("a") as file:
        yield _lock(file.fileno(), time.monotonic() + LOCK_SECONDS)


def _lock(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _is_alive(directory: Path, pid: int) -> bool:
    """Whether the process that wrote these files lives; a stranger may have its pid by now."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        written = max(file.stat().st_mtime for file in directory.glob(f"*_{pid}.db"))
        return process.create_time() < written + 1.0
    except (psutil.NoSuchProcess, ValueError, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True


def _retire(file: Path, into: Path) -> None:
    from prometheus_client.mmap_dict import MmapedDict  # only once the directory is ours

    retired = MmapedDict(str(into))
    try:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
            retired.write_value(key, retired.read_value(key)[0] + value, 0.0)
    finally:
        retired.close()
    file.unlink()


claim()
