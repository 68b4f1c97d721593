"""One process that the supervisor owns: how to start, recognise and stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_project.embedded.process import Account, StartFailed, describe_exit, spawn
from gateway_project.supervisor.state import identify

BACKOFF_FIRST = 0.1
BACKOFF_LAST = 10.0
STEADY_SECONDS = 10.0  # a child that ran this long did start well: the back-off begins anew


def _nothing() -> None: ...


def _nothing_of(pid: int) -> None: ...


@dataclass(slots=True, kw_only=True, repr=False)
class Child:
    """``what`` and ``address`` are for the line that announces it.

    ``prepare`` runs before every start, ``ready`` is asked until it says yes; with ``says_ready``
    the child is ready when its first line is out on stdout. One that ``runs_once`` is ready when it
    has ended well, and is not started again. ``ended`` is told the pid of a process that has died.
    """

    name: str
    what: str
    command: Sequence[str]
    env: Mapping[str, str]
    address: str = ""
    port: int | None = None
    account: Account | None = None
    stdin: bytes = b""
    pass_fds: Sequence[int] = ()
    cwd: Path | None = None
    log: Path | None = None  # None: our own stderr
    death_signal: signal.Signals = signal.SIGTERM
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    start_seconds: float = 30.0
    prepare: Callable[[], None] = _nothing
    ready: Callable[[], bool] | None = None
    says_ready: bool = False
    runs_once: bool = False
    ended: Callable[[int], None] = _nothing_of

    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    identity: dict[str, Any] = field(default_factory=dict, init=False)
    has_spoken: bool = field(default=False, init=False)
    is_ready: bool = field(default=False, init=False)
    failures: int = field(default=0, init=False)
    started_at: float = field(default=0.0, init=False)
    start_again_at: float = field(default=0.0, init=False)

    def __repr__(self) -> str:
        pid = self.process.pid if self.process else None
        return f"<Child {self.name} pid={pid} ready={self.is_ready} failures={self.failures}>"

    def start(self) -> None:
        """Raises ``StartFailed`` or ``OSError``."""
        self.prepare()
        stderr = None
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            stderr = self.log.open("ab")
        try:
            self.process = spawn(
                self.command,
                env=self.env,
                account=self.account,
                death_signal=self.death_signal,
                stdin=self.stdin,
                stdout=subprocess.PIPE if self.says_ready else stderr,
                stderr=stderr,
                pass_fds=self.pass_fds,
                cwd=self.cwd,
            )
        finally:
            if stderr is not None:
                stderr.close()
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)
        self.identity = {**identify(self.process.pid), "port": self.port}
        self.has_spoken = self.is_ready = False
        self.started_at = time.monotonic()

    def check_ready(self) -> bool:
        """Whether it has become ready. Raises ``StartFailed`` when it ended or took too long."""
        if self.process is None:
            raise StartFailed(f"{self.name} was never started")
        if self.process.poll() is not None:
            if self.runs_once and self.process.returncode == 0:
                self.is_ready = True
                return True
            raise StartFailed(f"{self.name} ended while starting: {self._how_it_ended()}")
        if self.says_ready:
            self.listen()
            self.is_ready = self.has_spoken
        elif not self.runs_once:
            self.is_ready = self.ready is None or self.ready()
        if not self.is_ready and time.monotonic() - self.started_at > self.start_seconds:
            raise StartFailed(
                f"{self.name} was not ready after {self.start_seconds:.0f} s{self._hint()}"
            )
        return self.is_ready

    def listen(self) -> None:
        """Read away what it wrote to stdout, so that the pipe never fills; note that it spoke."""
        if self.process is not None and self.process.stdout is not None:
            self.has_spoken = bool(self.process.stdout.read()) or self.has_spoken

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def plan_restart(self) -> str:
        """Note the end of the process; returns words for it. Sets ``start_again_at``."""
        now = time.monotonic()
        if now - self.started_at > STEADY_SECONDS:
            self.failures = 0
        delay = min(BACKOFF_FIRST * 2**self.failures, BACKOFF_LAST)
        self.failures += 1
        self.start_again_at = now + delay
        if self.process is not None:
            self.ended(self.process.pid)
        words = f"{self._how_it_ended()}; starting again in {delay:.1f} s"
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        self.is_ready = False
        return words

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)  # does nothing once the process has been waited for

    def kill_group(self) -> None:
        """SIGKILL to the child and to whatever it started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _how_it_ended(self) -> str:
        code = self.process.returncode if self.process else None
        return ("did not start" if code is None else describe_exit(code)) + self._hint()

    def _hint(self) -> str:
        return f" (see {self.log})" if self.log else ""
