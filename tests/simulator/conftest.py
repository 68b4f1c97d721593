"""One simulator of each dialect for the whole run, with a clean slate for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_simulator.process import SimulatorProcess


@pytest.fixture(scope="session")
def _nodes() -> Iterator[dict[str, SimulatorProcess]]:
    nodes = {dialect: SimulatorProcess(dialect) for dialect in ("vllm", "llamacpp")}
    try:
        yield {dialect: node.start() for dialect, node in nodes.items()}
    finally:
        for node in nodes.values():
            node.close()


@pytest.fixture
def vllm(_nodes: dict[str, SimulatorProcess]) -> SimulatorProcess:
    """A simulator that speaks as vLLM does."""
    return _clean(_nodes["vllm"])


@pytest.fixture
def llamacpp(_nodes: dict[str, SimulatorProcess]) -> SimulatorProcess:
    """A simulator that speaks as llama.cpp does."""
    return _clean(_nodes["llamacpp"])


@pytest.fixture(params=["vllm", "llamacpp"])
def node(request: pytest.FixtureRequest, _nodes: dict[str, SimulatorProcess]) -> SimulatorProcess:
    """A simulator of each dialect in turn."""
    return _clean(_nodes[request.param])


def _clean(node: SimulatorProcess) -> SimulatorProcess:
    if node.is_alive:
        node.clear_faults()
        return node
    return node.restart()
