"""One gateway with an engine, for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack


@pytest.fixture(scope="package")
def api() -> Iterator[Stack]:
    with (
        SimulatorProcess("vllm") as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"GRACE_SECONDS": "0.2", "MAX_STREAMS": "500"},
        ) as stack,
    ):
        yield stack
