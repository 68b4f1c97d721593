"""What HTTP statuses and broken connections mean, mocked and on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from gateway_project.embedded.process import free_port
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.http import error_message, model_name, positive
from streaming.engines.registry import dialect_for
from tests.durability.reader import until
from tests.engines.client import Recording, generation
from tests.engines.conftest import Start


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_statuses_of_the_client(status):
    engine = Recording("vllm", b'{"error":{"message":"too long"}}', status=status)
    with pytest.raises(RejectedByEngine, match="too long") as caught:
        await engine.chunks(generation())
    assert (caught.value.status, caught.value.in_stream) == (status, False)


@pytest.mark.parametrize(
    ("status", "headers", "cause", "retry_after"),
    [
        *((s, {}, Cause.BAD_STATUS, None) for s in (301, 401, 403, 404, 408, 409, 425, 500, 502)),
        (429, {}, Cause.BUSY, None),
        (503, {"retry-after": "7"}, Cause.BUSY, 7.0),
        (429, {"retry-after": "0.5"}, Cause.BUSY, 0.5),
        (503, {"retry-after": "Sun, 29 Nov 2026 17:00:00 GMT"}, Cause.BUSY, None),
        (503, {"retry-after": "-1"}, Cause.BUSY, None),
    ],
)
async def test_statuses_of_the_node(status, headers, cause, retry_after):
    engine = Recording("llamacpp", b"no", status=status, headers=headers)
    with pytest.raises(AttemptFailed) as caught:
        await engine.chunks(generation())
    assert (caught.value.cause, caught.value.retry_after) == (cause, retry_after)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m","code":400}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"object":"error","message":"m"}', "m"),
        (b'"m"', "m"),
        (b" m \n", "m"),
        (b"\xff", "\ufffd"),
    ],
)
def test_error_bodies(body, message):
    assert error_message(body) == message


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (httpx.ConnectError("no"), Cause.REFUSED),
        (httpx.RemoteProtocolError("incomplete"), Cause.CLOSED),
        (httpx.ReadTimeout("slow"), Cause.STALLED),
        (httpx.ReadError("broken"), Cause.RESET),
        (OSError("network"), Cause.RESET),
    ],
)
async def test_errors_of_the_transport(error, cause):
    with pytest.raises(AttemptFailed) as caught:
        await Recording("vllm", b"", error=error).chunks(generation())
    assert caught.value.cause is cause


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HALF = HEAD + b"10\r\ndata: {"


class Server:
    """Answers each request with some bytes, then closes or resets the connection."""

    def __init__(self, data: bytes, *, reset: bool) -> None:
        self._data = data
        self._reset = reset

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._data)
        await writer.drain()
        # The client reads what there is; a reset would overtake it.
        await asyncio.sleep(0.05)
        if self._reset:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


@pytest.mark.parametrize(
    ("data", "reset", "cause"),
    [
        (b"", False, Cause.CLOSED),
        (b"", True, Cause.RESET),
        (HEAD, False, Cause.CLOSED),
        (HEAD, True, Cause.RESET),
        (HALF, False, Cause.CLOSED),
        (HALF, True, Cause.RESET),
        (HEAD + b"0\r\n\r\n", False, Cause.CLOSED),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, Cause.RESET),
    ],
)
async def test_a_connection_that_breaks_says_how(client, data, reset, cause):
    server = await asyncio.start_server(Server(data, reset=reset), "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        dialect = dialect_for("vllm", client, f"http://127.0.0.1:{port}", NodeOptions())
        with pytest.raises(AttemptFailed) as caught:
            async for _ in dialect.generate(generation()):
                pass
    assert caught.value.cause is cause


async def test_nobody_listens(client):
    dialect = dialect_for("vllm", client, f"http://127.0.0.1:{free_port()}", NodeOptions())
    with pytest.raises(AttemptFailed) as caught:
        async for _ in dialect.generate(generation()):
            pass
    assert caught.value.cause is Cause.REFUSED


@pytest.mark.parametrize("name", [5, None, "", "a\u0000b", "a\nb", "\ud800", "x" * 501, ["m"]])
def test_a_models_name_can_be_stored_and_shown(name: object) -> None:
    with pytest.raises(ValueError, match="name"):
        model_name(name)


@pytest.mark.parametrize("value", ["abc", "4096", 0, -1, 2**31, 1.5, True, None, float("nan")])
def test_a_length_that_is_none_is_no_limit(value: object) -> None:
    assert positive(value) is None
    assert positive(4096) == 4096


async def test_llamacpp_keeps_no_connection_without_a_request(start: Start):
    """Each would keep a thread of the engine: what a burst leaves behind could let nobody in."""
    engine, dialect = start("llamacpp")
    await dialect.probe(5)
    message = {"role": "user", "content": "hello"}
    await asyncio.gather(*(dialect.render("sim-model", [message]) for _ in range(20)))

    def open_connections() -> int:
        port = urlsplit(engine.url).port
        return sum(
            bool(one.raddr) and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED
            for one in psutil.Process().net_connections("tcp")
        )

    await until(lambda: open_connections() == 0, 2)
