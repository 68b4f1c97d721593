"""Where exports are kept: ``DATA_DIR/exports/<id>/``, one directory each, whole or not there.

An export is written into a hidden directory beside, held by a file lock, which gets its name when
all of it is on the disk. What a killed process has left is swept up by the next export.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from django.conf import settings

MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
# Between its making and its lock nobody holds a directory.
_YOUNG_SECONDS = 60.0


def root() -> Path:
    """Where all exports are."""
    return settings.DATA_DIR / "exports"


def path_of(export_id: UUID, name: str) -> Path:
    """A file of a finished export. ``name`` has to be one that its manifest lists."""
    return root() / str(export_id) / name


@contextmanager
def unfinished(export_id: UUID) -> Iterator[Path]:
    """A directory to write an export into, ours until the end, which is its own unless published.

    Raises ``FileExistsError`` while another process makes the same export.
    """
    # For its owner only: it is money.
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _unfinished_of(export_id)
    if path.exists() and not held(path):  # its maker was killed
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    try:
        holder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX)
            yield path
        finally:
            os.close(holder)
    finally:
        if path.exists():
            shutil.rmtree(path)


def is_being_made(export_id: UUID) -> bool:
    """Whether a process of this machine is at it."""
    path = _unfinished_of(export_id)
    return path.exists() and held(path)


def publish(path: Path, export_id: UUID) -> Path:
    """Give a written directory its name, in one step, once all of it is on the disk."""
    _sync(path)
    final = root() / str(export_id)
    path.rename(final)
    _sync(final.parent)
    return final


def withdraw(export_id: UUID) -> None:
    """Undo :func:`publish`."""
    shutil.rmtree(root() / str(export_id), ignore_errors=True)


def sweep() -> list[UUID]:
    """Remove what killed processes have left half written; returns of which exports."""
    left = []
    for path in root().glob(f"{_UNFINISHED}*"):
        if time.time() - path.stat().st_mtime > _YOUNG_SECONDS and not held(path):
            shutil.rmtree(path)
            left.append(UUID(path.name.removeprefix(_UNFINISHED)))
    return left


def held(path: Path) -> bool:
    """Whether somebody is making the export in this directory, published already or not."""
    holder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(holder)
    return False


def seal(path: Path) -> str:
    """Bring a file to the disk; returns the SHA-256, hexadecimal, of what is there."""
    path.chmod(0o600)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_words(error: OSError) -> str:
    """What went wrong with a file, for who asked for the export."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "There is no room for the export on the disk; nothing of it was kept."
    return f"The export cannot be written: {error.strerror or error}."


def _unfinished_of(export_id: UUID) -> Path:
    return root() / f"{_UNFINISHED}{export_id}"


def _sync(path: Path) -> None:
    holder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(holder)
    finally:
        os.close(holder)
