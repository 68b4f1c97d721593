"""Two gateways with two engines for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack
from tests.websocket.talk import Talk, talk

PACE = 150
GRACE = 1.0


@dataclass(frozen=True)
class Hall:
    stack: Stack
    engines: list[SimulatorProcess]
    key: str

    def talk(
        self, gateway: int = 0, *, query: str = "", key: str | None = None
    ) -> AbstractAsyncContextManager[Talk]:
        url = self.stack.gateway(gateway).websocket_url
        return talk(f"{url}/ws/chat/{query}", self.key if key is None else key)

    @property
    def owner(self) -> Gateway:
        return self.stack.gateway(0)

    def state_of(self, session: str) -> str:
        return self.stack.sql("SELECT state FROM streaming_streamsession WHERE id = %s", session)[
            0
        ][0]


@pytest.fixture(scope="package")
def _hall() -> Iterator[Hall]:
    with (
        SimulatorProcess("vllm", pace=PACE) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"GRACE_SECONDS": str(GRACE), "HEALTH_INTERVAL": "0.2", "ALLOW_REHEARSAL": "1"},
            private_redis=True,
        ) as stack,
    ):
        yield Hall(stack, [a, b], stack.api_key(is_test=True))


@pytest.fixture
def hall(_hall: Hall) -> Hall:
    for engine in _hall.engines:
        if not engine.is_alive:
            engine.restart()
        engine.clear_faults()
    for gateway in _hall.stack.gateways:
        if gateway.process.poll() is not None:
            gateway.start_again()
    return _hall
