"""What a request looks like to a consumer, and what never reaches one."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from streaming.consumers.request import client_address, parsed_query
from streaming.errors import InvalidRequest
from tests.server import harness
from tests.server.harness import NO_TLS

LIMIT = 100_000  # tests.server.settings


async def exchange(server, data: bytes) -> bytes:
    """Send bytes, read until the server closes."""
    reader, writer = await server.connect()
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(-1), 10)
    finally:
        writer.close()


async def test_request_and_response(server):
    async with httpx.AsyncClient(verify=NO_TLS) as client:
        response = await client.post(
            server.url + "/echo/7?a=1&b=&a=2",
            content=b"x" * 20_000,
            headers={"X-Test": "yes", "X-Request-Id": "mine-1"},
        )
    assert response.status_code == 200
    told = response.json()
    assert told.pop("headers")["x-test"] == "yes"
    assert told.pop("root_path") == ""
    assert told == {
        "method": "POST",
        "body_bytes": 20_000,
        "client": "127.0.0.1",
        "query": {"a": "2", "b": ""},
        "params": {"number": 7},
        "request_id": "mine-1",
        "x-test": "yes",
    }
    assert response.headers["x-request-id"] == "mine-1"
    assert "server" not in response.headers


@pytest.mark.parametrize("insane", ["a b", "x" * 65, "ä", '"'])
async def test_insane_request_id_is_replaced(server, insane):
    response = await server.get("/echo/1", headers={"X-Request-Id": insane.encode()})
    assert len(response.headers["x-request-id"]) == 32


async def test_methods(server):
    async with httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as client:
        refused = await client.delete("/echo/1")
        assert refused.status_code == 405
        assert refused.headers["allow"] == "GET, POST, HEAD, OPTIONS"
        assert refused.json()["error"]["code"] == "method_not_allowed"
        options = await client.options("/echo/1")
        assert (options.status_code, options.content) == (204, b"")
        head = await client.head("/echo/1")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        # A stream's HEAD ends at the head.
        head = await client.head("/ticks/1000000/1000")
        assert head.headers["content-type"].startswith("text/event-stream")


async def test_stream_head(server):
    response = await server.get("/ticks/1/1")
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-server-time"].endswith("Z")
    assert "content-encoding" not in response.headers


async def test_body_at_the_limit_passes(server):
    async with httpx.AsyncClient(verify=NO_TLS) as client:
        response = await client.post(server.url + "/echo/1", content=b"x" * LIMIT)
    assert response.json()["body_bytes"] == LIMIT


async def test_oversize_body_is_refused_before_it_is_sent(server):
    head = f"POST /echo/1 HTTP/1.1\r\nHost: test\r\nContent-Length: {10**12}\r\n"
    reader, writer = await server.connect()
    writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert b"x-request-id" in answer.lower()
    writer.close()
    await server.until("channels", 1)


@pytest.mark.parametrize("chunked", [False, True])
async def test_oversize_body_sent_whole_still_gets_its_413(server, chunked):
    async def pieces():
        for _ in range(200):
            yield b"x" * 10_000

    content = pieces() if chunked else b"x" * 2_000_000
    async with httpx.AsyncClient(verify=NO_TLS) as client:
        response = await client.post(server.url + "/echo/1", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


async def test_slow_body_blocks_nobody(server):
    slow = []
    for _ in range(50):
        _, writer = await server.connect()
        writer.write(b"POST /echo/1 HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\nx")
        await writer.drain()
        slow.append(writer)
    await server.until("channels", 51)
    assert (await server.get("/ticks/2/1")).text.endswith("data: [DONE]\n\n")
    for writer in slow:
        writer.close()
    await server.until("channels", 1)


@pytest.mark.parametrize(
    "start",
    [
        b"G",
        b"POST /echo/1 HTTP/1.1\r\nHost: test\r\nX-Slow: ",
        b"POST /echo/1 HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n",
    ],
)
async def test_dripping_request_has_a_deadline(tmp_path, start):
    server = harness.start(tmp_path / "log", "--request-seconds", "0.5")
    try:
        reader, writer = await server.connect()
        writer.write(start)
        async with asyncio.timeout(5):
            while not reader.at_eof():
                writer.write(b"x")
                try:
                    await asyncio.wait_for(reader.read(1), 0.05)
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        writer.close()
        # A stream may take longer than its request.
        assert (await server.get("/ticks/8/100")).text.endswith("data: [DONE]\n\n")
    finally:
        harness.stop(server)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /echo/1 HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n",
        b"GET /echo/1 HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /echo/1 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /echo/1 HTTP/1.1\r\nHost: t\r\nX-Bad\x01: a\r\nConnection: close\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    ],
)
async def test_malformed_request_is_a_400(server, garbage):
    answer = await exchange(server, garbage)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"invalid_request_error"' in answer
    await server.until("connections", 1)
    await server.until("channels", 1)


async def test_too_many_query_fields_is_a_400(server):
    response = await server.get("/echo/1?" + "&".join("a=1" for _ in range(200)))
    assert response.status_code == 400


async def test_pipelined_requests_are_answered_in_order(server):
    request = b"GET /echo/%d HTTP/1.1\r\nHost: test\r\n%s\r\n"
    answer = await exchange(server, request % (1, b"") + request % (2, b"Connection: close\r\n"))
    assert answer.index(b'"number":1') < answer.index(b'"number":2')


async def test_forwarded_headers_of_strangers_are_dropped(server):
    response = await server.get("/echo/1", headers={"X-Forwarded-For": "203.0.113.9"})
    assert response.json()["client"] == "127.0.0.1"
    proxy = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(transport=proxy) as client:
        response = await client.get(
            server.url + "/echo/1", headers={"X-Forwarded-For": "198.51.100.1, 203.0.113.9"}
        )
    assert response.json()["client"] == "203.0.113.9"


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        (("192.0.2.1", 80), "", "192.0.2.1"),
        (("192.0.2.1", 80), "203.0.113.9", "192.0.2.1"),
        (("10.1.2.3", 80), "203.0.113.9", "203.0.113.9"),
        (("10.1.2.3", 80), "6.6.6.6, 203.0.113.9, 10.9.9.9", "203.0.113.9"),
        (("10.1.2.3", 80), "203.0.113.9:4711", "203.0.113.9"),
        (("10.1.2.3", 80), "[2001:db8::1]:4711", "2001:db8::1"),
        (("10.1.2.3", 80), "6.6.6.6, unknown", "10.1.2.3"),
        (("::ffff:10.1.2.3", 80), "203.0.113.9", "203.0.113.9"),
        (None, "203.0.113.9", ""),
    ],
)
def test_client_address(settings, peer, forwarded_for, client):
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    assert client_address(peer, forwarded_for) == client


def test_query():
    assert parsed_query(b"") == {}
    assert parsed_query(b"last_id=%2012&x") == {"last_id": " 12", "x": ""}
    with pytest.raises(InvalidRequest):
        parsed_query(b"&".join([b"a=1"] * 101))
