"""What a running ``serve`` tells other processes: ``DATA_DIR/run/services.json``.

    {"supervisor": {"pid": 12, "created": 1764000000.1},
     "database_url": "postgresql://…", "redis_url": "redis://…", "engine_nodes": ["gpu-a=llamacpp+http://…"],
     "url": "http://127.0.0.1:8000",
     "children": {"gateway-1": {"pid": 17, "created": 1764000001.5, "port": null}, …}}

``created`` is the process's creation time as the kernel tells it (seconds since the epoch): a pid
alone may belong to a stranger by now. The file holds a password, so only its owner may read it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil


def state_file(data_dir: Path) -> Path:
    return data_dir / "run" / "services.json"


def read_state(data_dir: Path) -> dict[str, Any] | None:
    """The state of the ``serve`` that runs on ``data_dir``, or None when none does."""
    state = read_last_state(data_dir)
    if state is None or find_process(state["supervisor"]) is None:
        return None
    return state


def read_last_state(data_dir: Path) -> dict[str, Any] | None:
    """The state as last written, whether or not that ``serve`` is still alive."""
    try:
        return json.loads(state_file(data_dir).read_text())
    except FileNotFoundError:
        return None


def write_state(data_dir: Path, state: dict[str, Any]) -> None:
    """Replace the file as a whole: a reader sees the old state or the new one."""
    path = state_file(data_dir)
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(state, file, indent=1)
    temporary.replace(path)


def identify(pid: int) -> dict[str, Any]:
    """``{"pid", "created"}`` of a living process, to be found again by :func:`find_process`."""
    return {"pid": pid, "created": psutil.Process(pid).create_time()}


def find_process(identity: dict[str, Any]) -> psutil.Process | None:
    """The process with this pid *and* creation time, or None when it is gone (or a zombie)."""
    try:
        process = psutil.Process(identity["pid"])
        same = abs(process.create_time() - identity["created"]) < 0.05
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same and alive else None
