"""PostgreSQL and Redis for one test session: those of the environment, else embedded ones.

``tests.settings`` calls :func:`start` before Django's settings are read. With ``DATABASE_URL`` or
``REDIS_URL`` in the environment nothing is started for it; the role must be a superuser: it creates
databases and roles, and tampers with what others may not change.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gateway_project.embedded.postgres import FAST_SHUTDOWN, Postgres
from gateway_project.embedded.process import free_port, spawn, stop, wait_until_ready
from gateway_project.embedded.redis import Redis


def start() -> None:
    """Start what the environment does not name, and put it into the environment. Once per session."""
    owner = os.getpid()
    directory = Path(tempfile.mkdtemp(prefix="unbroken-tests-"))
    directory.chmod(0o755)
    atexit.register(_in_this_process(owner, lambda: shutil.rmtree(directory)))
    os.environ["DATA_DIR"] = str(directory / "data")
    if not os.environ.get("DATABASE_URL"):
        server = Postgres(directory / "postgres", free_port(), durable=False)
        process = start_postgres(server)
        server.create_database()
        atexit.register(_in_this_process(owner, lambda: stop_postgres(process)))
        os.environ["DATABASE_URL"] = server.url()
    if not os.environ.get("REDIS_URL"):
        store = Redis(directory / "redis", free_port())
        redis_process = start_redis(store)
        atexit.register(_in_this_process(owner, lambda: stop_redis(redis_process)))
        os.environ["REDIS_URL"] = store.url()


def start_postgres(server: Postgres) -> subprocess.Popen[bytes]:
    """Start (again) on the same files and port; returns when it lets clients in."""
    server.prepare()
    with (server.directory.parent / "postgres.log").open("ab") as log:
        process = spawn(
            server.command(),
            account=server.account(),
            death_signal=signal.SIGINT,
            stdout=log,
            stderr=log,
        )
    wait_until_ready(process, server.is_ready, name="PostgreSQL", seconds=30, pause=time.sleep)
    return process


def stop_postgres(process: subprocess.Popen[bytes]) -> None:
    """A fast shutdown: clients are cut off, nothing committed is lost."""
    if process.poll() is None:
        stop(psutil.Process(process.pid), *FAST_SHUTDOWN)
        process.wait()


def start_redis(store: Redis) -> subprocess.Popen[bytes]:
    store.prepare()
    with (store.directory / "redis.log").open("ab") as log:
        process = spawn(store.command(), stdin=store.configuration(), stdout=log, stderr=log)
    wait_until_ready(process, store.is_ready, name="Redis", seconds=10, pause=time.sleep)
    return process


def stop_redis(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


def _in_this_process(owner: int, action: Callable[[], object]) -> Callable[[], None]:
    """``action``, but not in a fork of this process that ends by way of its exit handlers."""

    def guarded() -> None:
        if os.getpid() == owner:
            action()

    return guarded
