"""What is measured: simulated engines, one gateway process, a PostgreSQL as durable as production's."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from gateway_project.embedded.postgres import FAST_SHUTDOWN, Postgres
from gateway_project.embedded.process import free_port, spawn, stop, wait_until_ready
from gateway_project.embedded.redis import Redis
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack


def start_durable_services() -> int:
    """PostgreSQL with fsync on and a Redis, in the environment for ``Stack``; PostgreSQL's pid.

    They end with this process, after what ``Stack`` has registered to do with them at its end.
    """
    directory = Path(tempfile.mkdtemp(prefix="unbroken-bench-"))
    directory.chmod(0o755)
    atexit.register(shutil.rmtree, directory)
    server = Postgres(directory / "postgres", free_port(), durable=True)
    server.prepare()
    with (directory / "postgres.log").open("ab") as log:
        postgres = spawn(
            server.command(),
            account=server.account(),
            death_signal=signal.SIGINT,
            stdout=log,
            stderr=log,
        )
    atexit.register(stop, psutil.Process(postgres.pid), *FAST_SHUTDOWN)
    wait_until_ready(postgres, server.is_ready, name="PostgreSQL", seconds=30, pause=time.sleep)
    server.create_database()
    store = Redis(directory / "redis", free_port())
    store.prepare()
    redis = spawn(store.command(), stdin=store.configuration(), stdout=subprocess.DEVNULL)
    atexit.register(redis.kill)
    wait_until_ready(redis, store.is_ready, name="Redis", seconds=10, pause=time.sleep)
    os.environ.update(DATABASE_URL=server.url(), REDIS_URL=store.url())
    return postgres.pid


class CpuMeter:
    """Processor time of a process, or with ``family`` of it and its children, from /proc."""

    def __init__(self, pid: int, *, family: bool = False) -> None:
        self._process = psutil.Process(pid)
        self._family = family
        self.restart()

    def _seconds(self) -> float:
        own = self._process.cpu_times()
        total = own.user + own.system
        if self._family:
            # Children that have ended are in their parent's account.
            total += own.children_user + own.children_system
            for child in self._process.children(recursive=True):
                try:
                    times = child.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                total += times.user + times.system
        return total

    def restart(self) -> Self:
        self._before = self._seconds()
        self._waited_before = self._waited()
        return self

    def seconds(self) -> float:
        """Used since the start, or the last ``restart``."""
        return self._seconds() - self._before

    def waited(self) -> float:
        """Seconds since then in which the process could have run and others had the cores."""
        return self._waited() - self._waited_before

    def _waited(self) -> float:
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0


@dataclass(slots=True)
class Bench:
    """One gateway between two engines: ``paced`` and one that is as ``fast`` as it can be."""

    stack: Stack
    key: str
    paced: SimulatorProcess
    fast: SimulatorProcess
    gateway_cpu: CpuMeter
    postgres_cpu: CpuMeter


@contextmanager
def bench(postgres_pid: int, pace: float, arguments: Sequence[str] = ()) -> Iterator[Bench]:
    with (
        SimulatorProcess(pace=pace, model="paced") as paced,
        SimulatorProcess(model="fast") as fast,
        Stack(
            engine_nodes=[f"paced=vllm+{paced.url}", f"fast=vllm+{fast.url}"],
            env={"LOG_LEVEL": "WARNING"},
            arguments=arguments,
        ) as stack,
    ):
        yield Bench(
            stack,
            stack.api_key(),
            paced,
            fast,
            CpuMeter(stack.gateway().pid),
            CpuMeter(postgres_pid, family=True),
        )


def machine(directory: Path) -> dict[str, Any]:
    """What the figures depend on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "fsync_ms": _fsync_ms(directory),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _fsync_ms(directory: Path) -> float:
    """The median of what a small synchronous write costs here."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(50):
            file.write(b"x" * 8192)
            file.flush()
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    return round(sorted(times)[25] * 1000, 2)
