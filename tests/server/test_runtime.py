"""The runtime beside the applications: started before anybody can connect, stopped after all left."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.server import harness

RUNTIME = "tests.server.application:start_runtime"


async def test_order_of_start_drain_and_stop(tmp_path):
    server = harness.start(tmp_path / "log", "--runtime", RUNTIME)
    try:
        assert "runtime started" in server.log
        async with server.stream("/cleanup"):
            await server.until("running", 1)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 10) == 0
        log = server.log
        assert log.index("runtime drains for 2.0 s") < log.index("cleanup done")
        assert log.index("cleanup done") < log.index("runtime stopped")
    finally:
        harness.stop(server)


async def test_failing_start_ends_the_process(tmp_path):
    process = harness.spawn(tmp_path / "log", "--runtime", RUNTIME + "_failing")
    output, _ = await asyncio.to_thread(process.communicate, timeout=10)
    assert process.returncode == 1
    assert output == b""
    assert "ConnectionError: by test" in (tmp_path / "log").read_text()


async def test_signal_while_starting_ends_the_process(tmp_path):
    process = harness.spawn(tmp_path / "log", "--runtime", RUNTIME + "_never")

    async def starting() -> bool:
        return "runtime starting" in (tmp_path / "log").read_text()

    await harness.eventually(starting)
    process.send_signal(signal.SIGTERM)
    output, _ = await asyncio.to_thread(process.communicate, timeout=10)
    assert process.returncode == 0
    assert output == b""


@pytest.mark.parametrize("arguments", [["--host", "203.0.113.1"], ["--fd", "99"]])
async def test_address_that_is_not_to_be_had(tmp_path, arguments):
    process = harness.spawn(tmp_path / "log", *arguments)
    await asyncio.to_thread(process.communicate, timeout=10)
    assert process.returncode == 1
    assert "cannot listen" in (tmp_path / "log").read_text()
