"""Start, hurt and question a simulator from a test."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

_ROOT = Path(__file__).resolve().parents[2]


class SimulatorProcess:
    """One simulator in its own process.

    For example:

        with SimulatorProcess("llamacpp", pace=50, template="llama3") as node:
            node.set_fault(kind="sigkill", at_token=7)
            ask(node.url)
            node.restart()
            assert node.stats()["wrong_prefixes"] == 0

    Options are those of the command line, with underscores. Control goes over a Unix socket, so
    it works while the node refuses connections, but not while it is stopped.
    """

    def __init__(self, dialect: str = "vllm", *, port: int = 0, **options: Any) -> None:
        self.dialect = dialect
        self.port = port
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._directory = ""
        self._control: httpx.Client | None = None

    def __repr__(self) -> str:
        state = "running" if self.is_alive else "dead"
        return f"<SimulatorProcess {self.dialect} on {self.port} [{state}]>"

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        scheme = "https" if self._options.get("tls_cert") else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        """Say whether the process exists (a stopped one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process and wait until it listens."""
        if self.is_alive:
            raise RuntimeError(f"{self!r} runs already")
        self._directory = tempfile.mkdtemp(prefix="sim-")
        socket_path = f"{self._directory}/control"
        command = [sys.executable, "-m", "tests.engine_simulator", "--dialect", self.dialect]
        command += ["--port", str(self.port), "--control-socket", socket_path]
        for name, value in self._options.items():
            flag = f"--{name.replace('_', '-')}"
            command += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("READY "):
            self.close()
            raise RuntimeError(f"the simulator did not start: {command}")
        self.port = int(line.split()[1])
        self._control = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket_path), base_url="http://simulator", timeout=5
        )
        return self

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self.is_alive:
            self._running().send_signal(signal.SIGKILL)
            self._running().wait()

    def terminate(self) -> None:
        """Send SIGTERM and do not wait."""
        self._running().send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Freeze the process with SIGSTOP."""
        self._running().send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Wake a frozen process with SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def wait_dead(self, timeout: float = 5.0) -> None:
        """Wait until the process has died by itself, as `sigkill` makes it."""
        self._running().wait(timeout)

    def restart(self) -> Self:
        """Kill the process and start a fresh one on the same port."""
        self.close()
        return self.start()

    def set_fault(self, **spec: Any) -> None:
        """Order a fault, for example `kind="reset", at_token=5, match="some prompt"`."""
        self._ask("POST", "/_sim/fault", spec)

    def clear_faults(self) -> None:
        """Forget all faults, and listen again after `refuse`."""
        self._ask("DELETE", "/_sim/fault")

    def stats(self) -> dict[str, Any]:
        """Return the simulator's figures and its last requests."""
        return self._ask("GET", "/_sim/stats")

    def close(self) -> None:
        """Kill the process and tidy up; does nothing if that has been done."""
        self.kill()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.is_alive else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the simulator has not been started")
        return self._process

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._control is None:
            raise RuntimeError("the simulator has not been started")
        answer = self._control.request(method, path, json=body)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result
