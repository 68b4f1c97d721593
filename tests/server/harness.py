"""A real server process, and clients that misbehave over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

SETTINGS = "tests.server.settings"

T = TypeVar("T")
# Building httpx's own takes 30 ms of the event loop, for each client.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
APPLICATION = "tests.server.application:application"


@dataclass
class ServerProcess:
    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def resident(self) -> int:
        """Resident memory in bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    def cpu(self) -> float:
        """CPU seconds used so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    async def get(self, path: str, **kwargs) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10, verify=NO_TLS) as client:
            return await client.get(self.url + path, **kwargs)

    async def state(self) -> dict[str, float]:
        return (await self.get("/state")).json()

    async def until(self, name: str, value: float) -> dict[str, float]:
        """Wait until the application's counter has this value."""

        async def reached() -> dict[str, float] | None:
            current = await self.state()
            return current if current[name] == value else None

        return await eventually(reached)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A GET whose head has been read; the body is left to the test (chunked)."""
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 200"), head
            yield reader, writer
        finally:
            writer.close()

    def stuck_reader(self, path: str) -> socket.socket:
        """A client that asks and never reads."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        return client


def start(
    log_path: Path, *arguments: str, fds: tuple[int, ...] = (), **environment: str
) -> ServerProcess:
    """Start a server and return once it listens."""
    process = spawn(log_path, *arguments, fds=fds, **environment)
    line = process.stdout.readline().decode().split()
    assert line[:1] == ["READY"], log_path.read_text()
    return ServerProcess(process, int(line[1]), log_path)


def spawn(
    log_path: Path, *arguments: str, fds: tuple[int, ...] = (), **environment: str
) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "gateway_project.server", "--die-with-parent", "--port", "0"),
        *("--application", APPLICATION, "--without-runtime"),
    ]
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=fds,
        )


def stop(server: ServerProcess) -> None:
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGKILL)
    server.process.wait(10)
    server.process.stdout.close()


async def eventually(probe: Callable[[], Awaitable[T | None]], timeout: float = 10) -> T:
    """Ask ``probe`` until it returns something true."""
    async with asyncio.timeout(timeout):
        while True:
            if result := await probe():
                return result
            await asyncio.sleep(0.005)
