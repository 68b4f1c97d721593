"""The loop of ``serve``: start the children in order, respawn what dies, stop all in order.

One thread. Every wait goes through :meth:`Supervisor.pause`, which a signal ends at once.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from gateway_project.embedded.process import StartFailed, stop
from gateway_project.supervisor.child import Child
from gateway_project.supervisor.console import say
from gateway_project.supervisor.state import (
    find_process,
    identify,
    read_last_state,
    state_file,
    write_state,
)

HASTY_SECONDS = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequested(Exception):
    """SIGTERM, Ctrl-C or a closed terminal."""


@dataclass(slots=True)
class Supervisor:
    """``groups``: children that start together, each group when the one before is ready.

    They stop in the reverse order. ``public`` is what services.json says besides the children.
    """

    data_dir: Path
    groups: Sequence[Sequence[Child]]
    public: dict[str, Any]
    stop_requests: int = field(default=0, init=False)
    stopping: bool = field(default=False, init=False)
    _wake: socket.socket = field(init=False)

    def run(self) -> int:
        """Until a stop signal, or until something can't be started. Returns the exit code.

        The caller holds the lock on ``data_dir``.
        """
        with self._signals():
            self._stop_leftovers()
            try:
                for group in self.groups:
                    self._start(group)
                say("ready", self.public["url"])
                self._watch()
            except StopRequested:
                say("stopping", "(again to hurry)")
                return 0
            except (StartFailed, OSError) as error:
                say("failed", str(error))
                return 1
            finally:
                self._stop()
                state_file(self.data_dir).unlink(missing_ok=True)

    def pause(self, seconds: float) -> None:
        """Sleep; a signal ends it. Raises ``StopRequested`` when asked to stop, unless stopping."""
        if select.select([self._wake], [], [], max(seconds, 0))[0]:
            self._wake.recv(4096)
        if self.stop_requests and not self.stopping:
            raise StopRequested

    # --- starting and watching ---------------------------------------------------------------------

    def _start(self, group: Sequence[Child]) -> None:
        for child in group:
            child.start()
            self._publish()
        waiting = list(group)
        while waiting:
            for child in [child for child in waiting if child.check_ready()]:
                waiting.remove(child)
                announce(child)
            self.pause(0.02 if waiting else 0)

    def _watch(self) -> NoReturn:
        lasting = [child for child in self._children() if not child.runs_once]
        while True:
            for child in lasting:
                self._look_after(child)
            self.pause(_seconds_to_next_step(lasting))

    def _look_after(self, child: Child) -> None:
        """One step of a child's life: it has died, it is due, or it is becoming ready."""
        child.listen()
        try:
            if child.has_ended():
                say(child.name, child.plan_restart())
            elif child.process is None and time.monotonic() >= child.start_again_at:
                child.start()
                self._publish()
            elif child.process is not None and not child.is_ready and child.check_ready():
                announce(child)
        except (StartFailed, OSError) as error:
            say(child.name, str(error))
            child.kill_group()
            say(child.name, child.plan_restart())

    # --- stopping ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        self.stopping = True
        for group in reversed(self.groups):
            running = [child for child in group if child.process and child.process.poll() is None]
            for child in running:
                child.send(child.stop_signal)
            self._wait_for_end(running)

    def _wait_for_end(self, running: Sequence[Child]) -> None:
        """Each child has its ``stop_seconds``; from the second stop signal on, two seconds."""
        begun = time.monotonic()
        hasty_since: float | None = None
        while running := [child for child in running if not child.has_ended()]:
            now = time.monotonic()
            if self.stop_requests > 1 and hasty_since is None:
                hasty_since = now
                for child in running:
                    child.send(child.stop_signal)
            for child in running:
                too_slow = now - begun > child.stop_seconds
                if too_slow or (hasty_since is not None and now - hasty_since > HASTY_SECONDS):
                    say(child.name, "does not stop: killed")
                    child.kill_group()
            self.pause(0.05)

    def _stop_leftovers(self) -> None:
        """End what a killed predecessor left behind; a pid that is a stranger's by now is left alone."""
        state = read_last_state(self.data_dir)
        for name, identity in (state or {}).get("children", {}).items():
            process = find_process(identity)
            if process is not None:
                say(name, f"left behind by an earlier run: stopping pid {process.pid}")
                stop(process, (signal.SIGINT if name == "postgres" else signal.SIGTERM, 3.0))

    # --- the rest ----------------------------------------------------------------------------------

    def _children(self) -> list[Child]:
        return [child for group in self.groups for child in group]

    def _publish(self) -> None:
        running = [child for child in self._children() if child.process and not child.runs_once]
        children = {child.name: child.identity for child in running}
        state = {"supervisor": identify(os.getpid()), **self.public, "children": children}
        write_state(self.data_dir, state)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        self._wake, writer = socket.socketpair()
        self._wake.setblocking(False)
        writer.setblocking(False)
        before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN or number == signal.SIGCHLD:  # nohup keeps its meaning
                signal.signal(number, self._on_signal)
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wake.close()
            writer.close()

    def _on_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self.stop_requests += 1


def announce(child: Child) -> None:
    end = "done" if child.runs_once else f"pid {child.identity['pid']}"
    say(child.name, "  ".join(part for part in (child.what, child.address, end) if part))


def _seconds_to_next_step(children: Sequence[Child]) -> float:
    """A death wakes us by SIGCHLD; only back-offs and children that are starting need the clock."""
    if any(child.process is not None and not child.is_ready for child in children):
        return 0.05
    due = [child.start_again_at for child in children if child.process is None]
    return min(due) - time.monotonic() if due else 60.0
