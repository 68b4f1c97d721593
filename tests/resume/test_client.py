"""The Python client over a real stack, and what an ``EventSource`` sees of the same stream."""

from __future__ import annotations

import asyncio
import re
import time

import aiohttp
import httpx
import orjson
import pytest

from streaming.client import (
    ContentViolation,
    NetworkError,
    Piece,
    ServerError,
    SessionReader,
    UnbrokenClient,
)
from tests.durability.reader import is_increasing, question, until
from tests.engine_simulator.model import expected_answer
from tests.resume.events import Client, Reading, urls


def request(text: str, tokens: int) -> dict:
    return {"model": "sim-model", "messages": question(text, tokens), "temperature": 0}


async def read(reader: SessionReader) -> list[Piece]:
    return [piece async for piece in reader]


def must_be_whole(pieces: list[Piece], reader: SessionReader, body: dict) -> None:
    answer = expected_answer(body["messages"])
    assert "".join(piece.text for piece in pieces) == answer.text
    assert is_increasing([piece.seq for piece in pieces])
    assert reader.result is not None
    assert reader.result["state"] == "completed"
    assert reader.seq == answer.completion_tokens + 1


async def test_a_proxy_that_cuts_every_connection(stack_of_two, start_proxy):
    stack, _ = stack_of_two(pace=30, gateways=1)
    proxy = await start_proxy(stack.gateway().port, lifetime=0.4)
    body = request("cut again and again", 90)
    async with UnbrokenClient(proxy.url, stack.api_key()) as client:
        reader = await client.start(body)
        pieces = await read(reader)
        must_be_whole(pieces, reader, body)
        assert reader.reconnects >= 3
        assert proxy.cuts >= 3
        assert reader.info["session_id"] == reader.id
        again = client.resume(reader.id, reader.seq)
        assert await read(again) == [], "204: there is nothing more"
        half = client.resume(reader.id, 40)
        text = "".join(piece.text for piece in await read(half))
        assert text
        assert "".join(piece.text for piece in pieces).endswith(text)


class Alternating(httpx.AsyncBaseTransport):
    """What a load balancer does: each request goes to the next gateway."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turn = 0
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._turn += 1
        request.url = request.url.copy_with(port=self._ports[self._turn % len(self._ports)])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_its_gateway_is_killed(stack_of_two):
    stack, _ = stack_of_two(pace=30)
    body = request("killed", 90)
    transport = Alternating([gateway.port for gateway in stack.gateways])
    async with UnbrokenClient("http://127.0.0.1", stack.api_key(), transport=transport) as client:
        readers = [await client.start(body) for _ in range(6)]
        tasks = [asyncio.create_task(read(reader)) for reader in readers]
        await until(lambda: all(reader.seq >= 3 for reader in readers))
        stack.gateway(0).kill()
        for reader, pieces in zip(readers, await asyncio.gather(*tasks), strict=True):
            must_be_whole(pieces, reader, body)


async def test_a_frozen_gateway_is_noticed_by_the_watchdog(stack_of_two):
    stack, _ = stack_of_two(pace=30)
    body = request("frozen", 90)
    transport = Alternating([gateway.port for gateway in stack.gateways])
    async with UnbrokenClient(
        "http://127.0.0.1", stack.api_key(), transport=transport, watchdog=1.0
    ) as client:
        reader = await client.start(body)
        task = asyncio.create_task(read(reader))
        await until(lambda: reader.seq >= 3)
        stack.gateway(0).stop()
        try:
            must_be_whole(await task, reader, body)
        finally:
            stack.gateway(0).cont()


async def test_it_comes_back_after_an_error_that_another_try_may_get_over(stack_of_two):
    stack, engines = stack_of_two(pace=30, gateways=1, env={"MAX_FAILOVERS": "0"})
    for engine in engines:
        engine.set_fault(kind="truncated", after_tokens=9, times=2)
    body = request("twice at least", 60)
    async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
        reader = await client.start(body)
        must_be_whole(await read(reader), reader, body)
        assert reader.reconnects >= 2

        for engine in engines:
            engine.set_fault(kind="truncated", after_tokens=0, times=-1)
        client.patience = 0.5
        with pytest.raises(NetworkError, match="failover_exhausted"):
            await read(await client.start(request("never", 60)))


async def test_errors_are_told_apart(stack_of_two):
    stack, engines = stack_of_two(
        pace=30, gateways=1, env={"MAX_FAILOVERS": "0", "NODE_WAIT_SECONDS": "1"}
    )
    url = stack.gateway().url
    async with UnbrokenClient(url, stack.api_key()) as client:
        with pytest.raises(ServerError) as refused:
            await client.start({"model": "sim-model", "messages": []})
        assert refused.value.status == 400

        with pytest.raises(ServerError) as unknown:
            await read(client.resume("0" * 32))
        assert (unknown.value.status, unknown.value.code) == (404, "not_found")

        for engine in engines:
            engine.set_fault(kind="error_4xx", at_token=9)
        reader = await client.start(request("fails", 40))
        with pytest.raises(ServerError) as failed:
            await read(reader)
        assert failed.value.code == "engine_rejected"
        assert reader.seq == 10, "nine tokens and the end"
        assert await read(client.resume(reader.id, reader.seq)) == []

        violation = SessionReader(client, "x")
        with pytest.raises(ContentViolation):
            violation._take(
                b'event: done\ndata: {"seq": 4, "state": "completed", "finish_reason": "content_filter"}'
            )

    async with UnbrokenClient("http://127.0.0.1:9", "key", patience=0.5) as nobody:
        begun = time.monotonic()
        with pytest.raises(NetworkError):
            await read(nobody.resume("0" * 32))
        with pytest.raises(NetworkError):
            await nobody.start(request("nobody", 5))
        assert time.monotonic() - begun < 10


async def test_stop_and_ack(stack_of_two):
    stack, _ = stack_of_two(pace=30, gateways=1)
    async with UnbrokenClient(stack.gateway().url, stack.api_key(), user="ada") as client:
        reader = await client.start(request("stopped", 300))
        task = asyncio.create_task(read(reader))
        await until(lambda: reader.seq >= 5)
        acked = reader.seq
        await reader.ack()
        body = await reader.stop()
        assert body["state"] == "stopped"
        text = "".join(piece.text for piece in await task)
        assert reader.result is not None
        assert reader.result["state"] == "stopped"
        assert expected_answer(question("stopped", 300)).text.startswith(text)
        row = stack.sql("SELECT delivered_seq, durable_seq FROM session_fence")[0]
        assert acked <= row[0] <= row[1]


class EventSourceLike:
    """What a browser's ``EventSource`` does, as the standard says, from bytes.

    It reconnects by itself after ``retry`` milliseconds whenever a 200 ends, sends the last id it
    has seen, and stops for good at any other status.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.last_event_id = ""
        self.retry_ms = 3000
        self.events: list[tuple[str, str, str]] = []
        self.retries: list[int] = []
        self.final_status = 0

    async def run(self, http: aiohttp.ClientSession) -> None:
        while True:
            headers = {"accept": "text/event-stream", "cache-control": "no-store"}
            if self.last_event_id:
                headers["last-event-id"] = self.last_event_id
            try:
                async with http.get(self.url, headers=headers) as response:
                    if response.status != 200:
                        self.final_status = response.status
                        return
                    assert response.content_type == "text/event-stream"
                    await self._read(response.content)
            except (aiohttp.ClientError, OSError):
                pass
            self.retries.append(self.retry_ms)
            await asyncio.sleep(self.retry_ms / 1000)

    async def _read(self, content: aiohttp.StreamReader) -> None:
        data: list[str] = []
        kind, event_id, rest = "", self.last_event_id, b""
        async for chunk in content.iter_any():
            # CR, LF and CRLF end a line, and nothing else does.
            *lines, rest = re.split(rb"\r\n|\n|\r", rest + chunk)
            for line in lines:
                if not line:
                    self.last_event_id = event_id
                    if data:
                        self.events.append((kind or "message", "\n".join(data), event_id))
                    data, kind = [], ""
                    continue
                name, _, value = line.decode().partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    data.append(value)
                elif name == "event":
                    kind = value
                elif name == "id" and "\0" not in value:
                    event_id = value
                elif name == "retry" and value.isdecimal():
                    self.retry_ms = int(value)


async def test_an_event_source_goes_on_unaided_and_stops_at_the_end(stack_of_two, start_proxy):
    stack, _ = stack_of_two(pace=30, gateways=1)
    proxy = await start_proxy(stack.gateway().port, lifetime=1.0)
    messages = question("unaided", 100)
    async with Client(urls(stack), stack.api_key()) as client:
        _, created = await client.call("POST", "/v1/sessions", request("unaided", 100))
        source = EventSourceLike(
            f"{proxy.url}{created['events_url']}?stream_token={created['stream_token']}"
        )
        async with aiohttp.ClientSession() as http, asyncio.timeout(30):
            await source.run(http)
    assert source.final_status == 204
    assert proxy.cuts >= 2
    assert set(source.retries) == {1000}
    reading = Reading(created["id"], messages)
    assert [kind for kind, _, _ in source.events if kind in ("done", "error")] == ["done"]
    text = "".join(orjson.loads(data)["text"] for kind, data, _ in source.events if kind == "token")
    assert text == reading.answer.text
    assert source.last_event_id == str(reading.answer.completion_tokens + 1)


async def test_a_connection_that_is_too_old_is_moved_at_once(stack_of_two):
    stack, _ = stack_of_two(pace=30, gateways=1, env={"MAX_CONNECTION_AGE": "0.5"})
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("moved", 90))
        await client.read_on(reading)
        reading.must_be_whole()
        assert len(reading.connections) >= 3
        assert {connection.retry for connection in reading.connections[:-1]} == {50}
        assert {connection.broken for connection in reading.connections} == {""}
