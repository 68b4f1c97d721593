"""One gateway with one engine for the tests of this package; a stack of their own for the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tests.delivery.story import Door
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

GRACE = 0.6
PACE = 100


@dataclass(frozen=True)
class House:
    """``engine`` says ``PACE`` tokens a second."""

    stack: Stack
    engine: SimulatorProcess

    @property
    def url(self) -> str:
        return self.stack.gateway().url

    @property
    def running(self) -> int:
        return self.engine.stats()["running"]


@pytest.fixture(scope="package")
def _house() -> Iterator[House]:
    with (
        SimulatorProcess("vllm", pace=PACE) as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"GRACE_SECONDS": str(GRACE), "NODE_WAIT_SECONDS": "5"},
        ) as stack,
    ):
        yield House(stack, engine)


@pytest.fixture
def house(_house: House) -> House:
    _house.engine.clear_faults()
    return _house


@pytest.fixture
async def door(house: House) -> AsyncIterator[Door]:
    async with Door(house.stack.api_key()) as door:
        yield door
