"""What goes wrong in an application costs its own client something, and nobody else."""

from __future__ import annotations

import asyncio

import httpx
import orjson
import pytest
import websockets


@pytest.mark.parametrize("path", ["/fail/early", "/fail/silent", "/fail/cancelled"])
async def test_failure_before_the_head_is_a_500(server, path):
    response = await server.get(path)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "internal_error"
    assert response.headers["x-request-id"] in error["message"]


async def test_gateway_error_before_the_head_is_its_status(server):
    response = await server.get("/fail/gateway-error")
    assert response.status_code == 429
    assert response.reason_phrase == "Too Many Requests"
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/fail/late", "internal_error"),
        ("/fail/late-cancelled", "internal_error"),
        ("/fail/late-gateway-error", "rate_limit_exceeded"),
    ],
)
async def test_failure_after_the_head_is_told_in_the_stream(server, path, code):
    response = await server.get(path)
    assert response.status_code == 200
    first, last = response.text.strip().split("\n\n")
    assert first == "data: first"
    assert orjson.loads(last.removeprefix("data: "))["error"]["code"] == code


@pytest.mark.parametrize("path", ["/raw/late", "/raw/late-return", "/raw/late-exit", "/stubborn"])
async def test_truncated_response_never_ends_cleanly(server, path):
    with pytest.raises(httpx.TransportError):
        await server.get(path)


@pytest.mark.parametrize("path", ["/raw/early", "/raw/return", "/raw/exit", "/raw/head-only"])
async def test_raw_application_that_fails_early_gets_a_500(server, path):
    response = await server.get(path)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


async def test_fifty_failing_streams_then_all_is_well(server):
    async def fail() -> None:
        with pytest.raises(httpx.TransportError):
            await server.get("/raw/late")

    await asyncio.gather(*(fail() for _ in range(50)))
    assert (await server.get("/raw/early")).status_code == 500
    assert (await server.get("/ticks/2/1")).text.endswith("data: [DONE]\n\n")
    # What remains is the connection that asks.
    await server.until("connections", 1)
    await server.until("channels", 1)


async def test_a_failure_is_logged_once(server):
    request_id = "failure-logged-once"
    await server.get("/fail/early", headers={"X-Request-Id": request_id})
    assert server.log.count(f"request_id={request_id}") == 1
    before = server.log.count("ZeroDivisionError: by test")
    await server.get("/fail/early")
    assert server.log.count("ZeroDivisionError: by test") == before + 1


async def test_websocket_failure_closes_with_1011(server):
    async with websockets.connect(f"ws://127.0.0.1:{server.port}/ws") as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
        await socket.send("fail")
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await socket.recv()
    assert closed.value.rcvd.code == 1011
    await server.until("connections", 1)


async def test_websocket_is_closed_with_code_and_reason(server):
    async with websockets.connect(f"ws://127.0.0.1:{server.port}/ws") as socket:
        await socket.send("close")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd.code == 1012
    assert closed.value.rcvd.reason.startswith("see you ü")
    await server.until("connections", 1)


async def test_websocket_failure_in_the_handshake_is_a_500(server):
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(f"ws://127.0.0.1:{server.port}/unknown")
    assert refused.value.response.status_code == 500
    await server.until("connections", 1)
