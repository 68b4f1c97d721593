"""Two nodes of each dialect, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import failed
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.pair import Pair, nodes_of
from tests.stack import Stack

PACE = 60
"""Tokens a second of each stream."""
ENV = {
    "NODE_WAIT_SECONDS": "4",
    "HEALTH_INTERVAL": "0.3",
    "GRACE_SECONDS": "0.6",
    "FIRST_TOKEN_TIMEOUT": "6",
    # A node that fails on purpose is to be tried again in the next test.
    "CIRCUIT_PAUSE": "0.2",
    "LOG_LEVEL": "INFO",
}


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def shared_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with (
        SimulatorProcess(request.param, pace=PACE) as bad,
        SimulatorProcess(request.param, pace=PACE) as good,
        Stack(engine_nodes=nodes_of(bad=bad, good=good), env=ENV) as stack,
    ):
        yield Pair(stack, bad, good, stack.api_key())


@pytest.fixture
async def pair(shared_pair: Pair, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Both nodes alive, healthy and without faults; a log is shown when the test fails."""
    await shared_pair.mend()
    yield shared_pair
    if request.node.stash.get(failed, True):
        shared_pair.stack.show_logs()
