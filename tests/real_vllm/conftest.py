"""Two real vLLM servers for all of these tests, and a gateway in front of them for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import failed
from tests.failover.client import Reply, ask
from tests.failover.log import StoredAttempt, StoredLog, stored_attempts, stored_log
from tests.real_vllm.server import MODEL, MODEL_DIRECTORY, PYTHON, VLLMServer
from tests.stack import Stack

NODE_SECONDS = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    prepared = PYTHON.exists() and MODEL_DIRECTORY.exists()
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if not prepared:
                item.add_marker(pytest.mark.skip("vLLM is not installed: `make test-vllm` does it"))


@dataclass
class Fleet:
    """A gateway on the real servers."""

    stack: Stack
    key: str
    servers: dict[str, VLLMServer]

    def ask(
        self, prompt: str, *, on_text: Callable[[Reply], None] | None = None, **parameters: Any
    ) -> Reply:
        """Ask greedily and read to the end, seeing the gateway's control events too."""
        return ask(
            self.stack.gateway().url, self.key, prompt, model=MODEL, on_text=on_text,
            headers={"X-Unbroken-Events": "1"}, **parameters,
        )  # fmt: skip

    def serving(self, reply: Reply) -> VLLMServer:
        """The server of the attempt that was begun last."""
        return self.servers[nodes_of(reply)[-1]]

    def log(self, reply: Reply) -> StoredLog:
        return stored_log(self.stack.sql, reply.session_id)

    def attempts(self, reply: Reply) -> list[StoredAttempt]:
        return stored_attempts(self.stack.sql, reply.session_id)

    def events(self, reply: Reply) -> dict[str, dict[str, Any]]:
        """What was written down about the session, in order: kind and data."""
        query = "SELECT kind, data FROM streaming_sessionevent WHERE session_id = %s ORDER BY id"
        return dict(self.stack.sql(query, reply.session_id))

    def cause(self, reply: Reply) -> str:
        """Why the first attempt of a session was interrupted, once that is found out."""
        query = "SELECT cause FROM streaming_attempt WHERE session_id = %s AND number = 1"
        wait_until(lambda: bool(self.stack.sql(query, reply.session_id)[0][0]), "no cause is found")
        cause: str = self.stack.sql(query, reply.session_id)[0][0]
        return cause

    def wait_for(self, name: str, health: str) -> None:
        """Until the gateway thinks so of a node."""
        query = "SELECT 1 FROM streaming_inferencenode WHERE name = %s AND health = %s"
        wait_until(lambda: bool(self.stack.sql(query, name, health)), f"{name} is not {health}")


def nodes_of(reply: Reply) -> list[str]:
    """The node of each attempt so far."""
    return [data["node"] for name, data in reply.controls if name == "unbroken.attempt"]


def wait_until(
    condition: Callable[[], bool], complaint: str, seconds: float = NODE_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VLLMServer]]:
    directory = tmp_path_factory.mktemp("vllm")
    servers = {
        name: VLLMServer(name, directory / f"{name}.log", dev_mode=name == "dev")
        for name in ("dev", "plain")
    }
    try:
        yield servers
    finally:
        for server in servers.values():
            server.kill()


@pytest.fixture
def servers(
    started: dict[str, VLLMServer], request: pytest.FixtureRequest
) -> Iterator[dict[str, VLLMServer]]:
    """``dev`` (in dev mode) and ``plain`` (default flags), whole; what a test killed starts anew."""
    dead = [server for server in started.values() if not server.is_alive]
    for server in dead:
        server.start()
    for server in dead:
        server.wait_until_healthy()
    yield started
    if request.node.stash.get(failed, True):
        for server in started.values():
            print(f"--- {server.name}\n{server.log[-3000:]}")


def start_fleet(
    start_stack: Callable[..., Stack],
    servers: dict[str, VLLMServer],
    urls: dict[str, str] | None = None,
) -> Fleet:
    """``urls``: where the gateway finds the servers, if something stands between."""
    urls = urls or {name: server.url for name, server in servers.items()}
    stack = start_stack(
        engine_nodes=[f"{name}=vllm+{url}" for name, url in urls.items()],
        env={"HEALTH_INTERVAL": "0.5", "GRACE_SECONDS": "0.5", "LOG_LEVEL": "INFO"},
    )
    fleet = Fleet(stack, stack.api_key(), servers)
    for name in servers:
        fleet.wait_for(name, "up")
    return fleet


@pytest.fixture
def fleet(servers: dict[str, VLLMServer], start_stack: Callable[..., Stack]) -> Fleet:
    return start_fleet(start_stack, servers)
