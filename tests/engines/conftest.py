"""The real client, and dialects that speak to simulators with any flags."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from streaming.core.nodes import NodeOptions
from streaming.engines.base import Dialect
from streaming.engines.http import EngineClient, engine_client
from streaming.engines.registry import dialect_for
from tests.engine_simulator.process import SimulatorProcess

Start = Callable[..., tuple[SimulatorProcess, Dialect]]


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = engine_client()
    yield client
    await client.aclose()


@pytest.fixture
def start(client: EngineClient) -> Iterator[Start]:
    engines = []

    def started(
        name: str, options: NodeOptions | None = None, **flags: object
    ) -> tuple[SimulatorProcess, Dialect]:
        engine = SimulatorProcess(name, **flags).start()
        engines.append(engine)
        return engine, dialect_for(name, client, engine.url, options or NodeOptions())

    yield started
    for engine in engines:
        engine.close()
