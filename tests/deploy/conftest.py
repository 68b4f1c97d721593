"""Two gateways over two engines, with nginx in front."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.http2 import Http2Reader, http2_reader
from tests.deploy.nginx import Nginx
from tests.durability.reader import Readers, until
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client
from tests.stack import Gateway, Stack
from tests.websocket.talk import Talk, talk

PACE = 100
GRACE = 0.3
SETTINGS = {
    "TRUSTED_PROXIES": "127.0.0.1",
    "HTTPS_ONLY": "1",
    "GRACE_SECONDS": str(GRACE),
    "HEALTH_INTERVAL": "0.3",
    "SHUTDOWN_GRACE": "30",
}


@dataclass
class House:
    stack: Stack
    engines: list[SimulatorProcess]
    nginx: Nginx
    key: str
    tls: ssl.SSLContext
    http2: ssl.SSLContext

    def readers(self) -> Readers:
        """Readers of the OpenAI protocol, through nginx."""
        return Readers(self.nginx.url, self.key, tls=self.tls)

    def client(self) -> Client:
        """A client of the sessions API, through nginx."""
        return Client([self.nginx.url], self.key, tls=self.tls)

    def talk(self) -> AbstractAsyncContextManager[Talk]:
        return talk(f"{self.nginx.websocket_url}/ws/chat/", self.key, tls=self.tls)

    def http2_reader(self) -> AbstractAsyncContextManager[Http2Reader]:
        return http2_reader(self.nginx.port, self.http2)

    @property
    def running(self) -> int:
        """Requests that run on the engines now."""
        return sum(engine.stats()["running"] for engine in self.engines)

    def owner_of(self, session_id: str) -> Gateway:
        """The gateway that works on a session."""
        ((pid,),) = self.stack.sql(
            "SELECT i.pid FROM streaming_streamsession s JOIN streaming_gatewayinstance i"
            " ON s.owner_id = i.id WHERE s.id = %s",
            session_id,
        )
        return next(gateway for gateway in self.stack.gateways if gateway.pid == pid)

    def sessions(self) -> int:
        """How many have ever been begun."""
        return self.stack.sql("SELECT count(*) FROM streaming_streamsession")[0][0]

    async def renew_workers(self) -> None:
        """Reload nginx; new workers take requests when this returns."""
        old = self.nginx.workers()
        self.nginx.reload()
        await until(lambda: bool(self.nginx.workers()) and not self.nginx.workers() & old, 30)

    async def at_rest(self) -> None:
        await until(lambda: self.running == 0, 30)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that the workers of nginx get into, too: they have another account."""
    with tempfile.TemporaryDirectory(prefix="unbroken-nginx-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture(scope="package")
def _house() -> Iterator[House]:
    with (
        open_directory() as directory,
        SimulatorProcess("vllm", pace=PACE) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2, engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"], env=SETTINGS
        ) as stack,
        Nginx(directory, [gateway.port for gateway in stack.gateways]) as nginx,
    ):
        yield House(stack, [a, b], nginx, stack.api_key(), nginx.tls(), nginx.tls("h2"))


@pytest.fixture
async def house(_house: House) -> AsyncIterator[House]:
    """All processes run, and nothing runs on the engines."""
    dead = [gateway for gateway in _house.stack.gateways if gateway.process.poll() is not None]
    for gateway in dead:
        gateway.start_again()
    if dead:  # nginx leaves them out for two seconds; new workers know nothing of it
        await _house.renew_workers()
    await _house.at_rest()
    yield _house
    assert _house.nginx.process.poll() is None, _house.nginx.errors
