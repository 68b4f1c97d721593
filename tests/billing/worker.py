"""A real Celery worker of a stack, which settles when a test asks it to."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery
from django.conf import settings

from gateway_project.embedded.process import spawn
from tests.stack import ROOT, Stack

COMMAND = [
    sys.executable, "-m", "celery", "-A", "gateway_project.celery", "--quiet",
    "worker", "--pool=solo", "--without-gossip", "--without-mingle",
]  # fmt: skip


class Worker:
    """As ``serve`` starts it; ``env`` goes over the stack's environment, ``code`` is its version."""

    def __init__(self, stack: Stack, *, code: Path = ROOT, **env: str) -> None:
        self._stack = stack
        self._code = code
        self._env = stack.env(**env)
        self._queue = Celery("tests", broker=stack.redis_url)
        self._queue.conf.task_default_queue = settings.CELERY_TASK_DEFAULT_QUEUE
        self._log = stack.directory / "worker.log"
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self._queue.close()
        if error is not None:
            sys.stderr.write(f"\n--- worker\n{self.log[-6000:]}")

    def start(self) -> None:
        """A new process."""
        with self._log.open("ab") as log:
            self._process = spawn(
                COMMAND, env=self._env, cwd=self._code, stdout=log, stderr=log,
                death_signal=signal.SIGKILL,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def settle(self, times: int = 1) -> None:
        """Ask it to, as beat does every second; without waiting."""
        for _ in range(times):
            self._queue.send_task("settle_sessions")
