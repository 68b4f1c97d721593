"""One gateway with one engine for the tests of this package; a clean engine for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

MODEL = "sim-model"


@dataclass(frozen=True)
class Front:
    stack: Stack
    engine: SimulatorProcess
    key: str

    @property
    def url(self) -> str:
        return self.stack.gateway().url

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def post(self, **request: object) -> httpx.Response:
        return httpx.post(self.url + "/v1/chat/completions", headers=self.headers, **request)  # type: ignore[arg-type]

    def state_of(self, session_id: str) -> tuple[str, str]:
        """state, cause"""
        return self.stack.sql(
            "SELECT state, cause FROM streaming_streamsession WHERE id = %s", session_id
        )[0]


@pytest.fixture(scope="package")
def _front() -> Iterator[Front]:
    with (
        SimulatorProcess("vllm") as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={
                "RESPONSE_START_SECONDS": "0.4",
                "KEEPALIVE_SECONDS": "0.3",
                "MAX_BODY_BYTES": "200000",
            },
        ) as stack,
    ):
        yield Front(stack, engine, stack.api_key())


@pytest.fixture
def front(_front: Front) -> Front:
    _front.engine.clear_faults()
    return _front
