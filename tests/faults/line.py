"""Nodes whose packets can be lost: nothing is closed, nothing is refused, nothing arrives."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Any, Self

from tests.engine_simulator.process import SimulatorProcess

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network of its own, joined to ours by one cable. Needs root and ``ip``.

    It lives as long as its holder, a process that ends with ours.
    """

    def __init__(self) -> None:
        number = os.getpid() % 16_000
        # Addresses for benchmarks of network devices: nobody has them.
        network = f"198.18.{number // 64}.{number % 64 * 4}"
        base, _, last = network.rpartition(".")
        self.outside, self.inside = f"{base}.{int(last) + 1}", f"{base}.{int(last) + 2}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert self._holder.stdout is not None
            self._holder.stdout.readline()
            here, there = f"ub{number}a", f"ub{number}b"
            pid = str(self._holder.pid)
            _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", pid)
            _run("ip", "addr", "add", f"{self.outside}/30", "dev", here)
            _run("ip", "link", "set", here, "up")
            self.run("ip", "addr", "add", f"{self.inside}/30", "dev", there)
            self.run("ip", "link", "set", there, "up")
        except BaseException:
            self.close()
            raise

    def run(self, *command: str) -> None:
        """Run a command inside. Raises ``CalledProcessError``."""
        _run("nsenter", "--net", "--target", str(self._holder.pid), *command)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Processes started meanwhile, by this thread, are inside."""
        back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(f"/proc/{self._holder.pid}/ns/net", os.O_RDONLY)
        try:
            _enter(inside)
            yield
        finally:
            _enter(back)
            os.close(inside)
            os.close(back)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@cache
def namespaces_work() -> bool:
    """Whether this machine lets us have a network of our own: a plain container does not."""
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    try:
        namespace = Namespace()
    except (OSError, subprocess.CalledProcessError):
        return False
    namespace.close()
    return True


class NodeInNamespace(SimulatorProcess):
    """A node whose kernel loses every packet it sends us, acknowledgements included."""

    def __init__(self, dialect: str, **options: Any) -> None:
        self._namespace = Namespace()
        super().__init__(dialect, host=self._namespace.inside, **options)

    @property
    def url(self) -> str:
        return f"http://{self._namespace.inside}:{self.port}"

    def start(self) -> Self:
        with self._namespace.entered():
            return super().start()

    def lose_packets(self) -> None:
        self._namespace.run("ip", "route", "add", "blackhole", f"{self._namespace.outside}/32")

    def deliver(self) -> None:
        """Packets arrive again; what was sent meanwhile, too."""
        self._namespace.run("ip", "route", "del", "blackhole", f"{self._namespace.outside}/32")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._namespace.close()


class NodeBehindProxy(SimulatorProcess):
    """The same where no network may be made: a proxy that stops forwarding and closes nothing."""

    def __init__(self, dialect: str, **options: Any) -> None:
        super().__init__(dialect, **options)
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> Self:
        super().start()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def lose_packets(self) -> None:
        self._flows.clear()

    def deliver(self) -> None:
        """Data flows again; what was sent meanwhile, too."""
        self._flows.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._flows.set()
        super().__exit__(kind, error, trace)

    def _accept(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection(("127.0.0.1", self.port))
                self._sockets += client, node
                for source, sink in ((client, node), (node, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


LINES = [*([NodeInNamespace] if namespaces_work() else []), NodeBehindProxy]
