"""One ``serve`` per DATA_DIR."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataDirInUse(RuntimeError):
    """Another ``serve`` runs on this DATA_DIR."""


@contextmanager
def hold_data_dir(data_dir: Path) -> Iterator[None]:
    """Hold the lock for the time of the block. Raises ``DataDirInUse``.

    The kernel gives the lock up with the process, however it ends; children do not inherit it.
    """
    path = data_dir / "run" / "lock"
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode() or "?"
            raise DataDirInUse(
                f"a serve with pid {owner} already runs on {data_dir}; "
                "stop it, or give this one its own DATA_DIR and port"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
