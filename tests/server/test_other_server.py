"""The base consumer needs nothing but ASGI: the same behaviour on uvicorn, where it is installed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import httpx
import pytest

from tests.server import harness

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log_path = tmp_path_factory.mktemp("uvicorn") / "log"
    program = (
        "import sys, django, uvicorn; django.setup(); "
        f"uvicorn.run({harness.APPLICATION!r}, fd=int(sys.argv[1]), log_config=None, "
        "timeout_graceful_shutdown=2)"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(listener.fileno())],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": harness.SETTINGS},
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
        server = harness.ServerProcess(process, listener.getsockname()[1], log_path)
    yield server
    harness.stop(server)


async def test_stream_and_errors(server):
    assert (await server.get("/ticks/3/1")).text.endswith("data: [DONE]\n\n")
    assert (await server.get("/fail/early")).status_code == 500
    assert '"code":"internal_error"' in (await server.get("/fail/late")).text
    assert (await server.get("/fail/gateway-error")).status_code == 429
    assert (await server.get("/silent")).text.startswith(":keepalive\n\n")


async def test_disconnect_and_backpressure(server):
    before = await server.state()
    with server.stuck_reader("/ticks/1000000/10"), server.stuck_reader("/flood"):
        await server.until("running", 2)
        left_at = time.time()
    state = await server.until("left", before["left"] + 1)
    await server.until("running", 0)
    assert state["left_at"] - left_at < 0.1


async def test_oversize_body(server):
    async with httpx.AsyncClient(verify=harness.NO_TLS) as client:
        response = await client.post(server.url + "/echo/1", content=b"x" * 200_000)
    assert response.status_code == 413
