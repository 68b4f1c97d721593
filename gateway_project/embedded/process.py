"""Starting and stopping one child process so that it can't outlive its parent unnoticed."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a child runs as, when that is another one than ours."""

    uid: int
    gid: int


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
    stdin: bytes = b"",
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
    cwd: Path | str | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command``; the kernel sends it ``death_signal`` when the thread that called this dies.

    ``env`` replaces the environment. The child leads a session of its own: a Ctrl-C in the terminal
    reaches the parent only, which stops its children in order.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        # Runs between fork and exec, after the change of user: a change of user clears the setting.
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # it died in between: nobody would send the signal any more
            os._exit(1)

    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        return subprocess.Popen(
            command,
            env=env,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            preexec_fn=die_with_parent,
            start_new_session=True,
            pass_fds=pass_fds,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd or ("/" if account else None),
        )


def stop(process: psutil.Process, *steps: tuple[signal.Signals, float]) -> None:
    """Send each signal of ``steps`` and wait its seconds, until the process is gone.

    The last step is SIGKILL without a limit, whatever ``steps`` holds. For processes that are not
    our children too (those that a killed predecessor left behind).
    """
    for number, seconds in (*steps, (signal.SIGKILL, None)):
        try:
            process.send_signal(number)
            process.wait(seconds)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            continue
        return


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


class StartFailed(RuntimeError):
    """A child died, or did not answer in time, before it was ready. The message says which and why."""


def wait_until_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    *,
    name: str,
    seconds: float,
    pause: Callable[[float], object],
) -> None:
    """Ask ``ready`` every 20 ms, ``pause`` (a sleep) in between. Raises ``StartFailed``."""
    waited = 0.0
    while not ready():
        if process.poll() is not None:
            raise StartFailed(
                f"{name} ended with {describe_exit(process.returncode)} while starting"
            )
        if waited > seconds:
            raise StartFailed(f"{name} was not ready after {seconds:.0f} s")
        pause(0.02)
        waited += 0.02


def describe_exit(code: int) -> str:
    """``exit code 3`` or ``SIGKILL``."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
