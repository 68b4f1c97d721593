from __future__ import annotations

import pytest

from tests.server import harness


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for the tests of a module: what one test does to it, the next one must not feel."""
    server = harness.start(tmp_path_factory.mktemp("server") / "log")
    yield server
    assert server.process.poll() is None, server.log
    harness.stop(server)


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may end."""
    server = harness.start(tmp_path / "log")
    yield server
    harness.stop(server)
