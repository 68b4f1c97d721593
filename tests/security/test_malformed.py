"""Ten thousand malformed bodies and frames, and clients that are slow or send too much: each gets its
error, nothing breaks or leaks, and a stream that is under way knows nothing of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import psutil
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from tests.durability.reader import Readers, question, until
from tests.metrics.scrape import scrape
from tests.security.conftest import MODEL, House, code_of, errors_in, request
from tests.security.malformed import HEADERS, QUERY, WORDS, bodies, frames

BODIES = 3000
FRAMES = 7000
AT_ONCE = 12
BEGUN = "SELECT count(*) FROM streaming_streamsession WHERE model_requested <> %s"
GROWTH = 64 * 1024 * 1024
"""Bytes by which a process may grow over all of it: a leak of 10 KB a request would be more."""


@asynccontextmanager
async def undisturbed(house: House) -> AsyncIterator[None]:
    """Streams that begin before and must be whole after; and what the process has is given back."""
    process = psutil.Process(house.stack.gateway(0).pid)
    before = len(house.stack.gateway(0).log)
    files, threads = process.num_fds(), process.num_threads()
    over = asyncio.Event()
    async with Readers(house.url, house.key) as readers:

        async def read_on() -> int:
            for number in itertools.count():
                seen = await readers.ask(question(f"undisturbed {number}", 300))
                assert seen.is_whole, seen.trouble
                if over.is_set():
                    return number
            raise AssertionError

        reading = [asyncio.create_task(read_on()) for _ in range(2)]
        try:
            yield
            over.set()
            await asyncio.gather(*reading)
        finally:
            for task in reading:
                task.cancel()
    log = house.stack.gateway(0).log[before:]
    assert not errors_in(log)
    # Connections that idle in a pool of ours come and go; one a request would be thousands.
    await until(lambda: process.num_fds() <= files + 20, 30)
    assert process.num_threads() <= threads + 10
    figures = scrape(house.url)
    assert not figures.total("unbroken_websocket_connections")
    assert figures.value("unbroken_errors_told_total", code="internal_error") in (None, 0)


async def test_malformed_bodies(house: House) -> None:
    process = psutil.Process(house.stack.gateway(0).pid)
    token = house.token(preset={"system": "s", "max_tokens": 3})
    begun = house.stack.sql(BEGUN, MODEL)
    seen: Counter[int] = Counter()

    async def send(client: aiohttp.ClientSession, wrong: list[tuple[str, bytes]]) -> None:
        for number, (path, body) in enumerate(wrong):
            headers = {
                "Authorization": f"Bearer {token if number % 3 == 0 else house.key}",
                "Content-Type": "application/json",
            }
            async with client.post(house.url + path, data=body, headers=headers) as answer:
                seen[answer.status] += 1
                if answer.status == 201 and path == "/v1/embed-tokens":
                    continue  # by chance what was put in was right
                error = (await answer.json())["error"]
                assert 400 <= answer.status < 500, (path, body, error)
                assert set(error) == {"message", "type", "param", "code", "resumable"}
                assert len(error["message"]) < 1000

    async with aiohttp.ClientSession() as client:
        source = bodies(seed=7)
        await send(client, list(itertools.islice(source, 200)))  # caches fill
        memory = process.memory_info().rss
        async with undisturbed(house):
            share = (BODIES - 200) // AT_ONCE
            await asyncio.gather(
                *(send(client, list(itertools.islice(source, share))) for _ in range(AT_ONCE))
            )
    assert seen.total() >= BODIES - AT_ONCE
    assert set(seen) <= {201, 400, 403, 404}, seen
    assert seen[201] < BODIES / 50
    assert process.memory_info().rss - memory < GROWTH
    assert house.stack.sql(BEGUN, MODEL) == begun


async def test_malformed_frames(house: House) -> None:
    process = psutil.Process(house.stack.gateway(0).pid)
    token = house.token()
    codes: Counter[str] = Counter()

    async def send(number: int) -> None:
        wrong = frames(seed=number)
        headers = {"Authorization": f"Bearer {token if number % 2 else house.key}"}
        async with connect(
            house.socket_url, additional_headers=headers, ping_interval=None, close_timeout=1
        ) as socket:
            for count, frame in enumerate(itertools.islice(wrong, FRAMES // AT_ONCE)):
                try:
                    await socket.send(frame.decode() if count % 2 else frame)
                except UnicodeDecodeError:
                    await socket.send(frame)
                if b"wish" in frame:
                    # Of one that happens to be right nothing is heard.
                    await socket.send('{"type": "nothing"}')
                    assert json.loads(await socket.recv())["type"] == "error"
                    codes["wish"] += 1
                    continue
                message = {"type": "ping"}
                while message["type"] == "ping":
                    message = json.loads(await socket.recv())
                assert message["type"] == "error", (frame, message)
                assert message["error"]["code"] != "internal_error", (frame, message)
                codes[message["error"]["code"]] += 1
            await socket.send('{"type": "ping"}')
            while (message := json.loads(await socket.recv()))["type"] != "pong":
                assert message["type"] in ("error", "ping")

    await send(1000)
    memory = process.memory_info().rss
    async with undisturbed(house):
        await asyncio.gather(*(send(number) for number in range(AT_ONCE)))
    assert codes.total() >= FRAMES
    assert process.memory_info().rss - memory < GROWTH


async def test_odd_parameters(house: House) -> None:
    """Of a session that there is, so that each is really read."""
    key = house.stack.api_key("acme", is_test=True)
    session = house.session(key)
    events = f"{house.url}/v1/sessions/{session}/events"
    assert house.ask("GET", f"/v1/sessions/{session}/events", key).status_code == 200
    wrong = request(model="nobodys-model")
    seen: Counter[int] = Counter()

    async def send(client: aiohttp.ClientSession, numbers: range) -> None:
        for number in numbers:
            chance = random.Random(number)
            query = {chance.choice(QUERY): chance.choice(WORDS) for _ in range(2)}
            if "wait" in query:
                query["wait"] = query["wait"][:1]  # nobody has 25 s
            words = [
                word for word in WORDS if word.isascii() and word.isprintable() and len(word) < 4000
            ]
            headers = {chance.choice(HEADERS): chance.choice(words) for _ in range(2)}
            headers["Authorization"] = f"Bearer {key}"
            headers.setdefault("Content-Type", "application/json")
            if number % 2:
                asked = client.get(events, params=query, headers=headers)
            else:
                url = f"{house.url}/v1/{chance.choice(['sessions', 'chat/completions'])}"
                asked = client.post(url, params=query, headers=headers, json=wrong)
            async with asked as answer:
                seen[answer.status] += 1
                assert answer.status < 500, (query, headers, await answer.text())

    async with undisturbed(house), aiohttp.ClientSession() as client:
        await asyncio.gather(*(send(client, range(n * 60, n * 60 + 60)) for n in range(10)))
    assert seen[400] > 100, seen


async def test_broken_frames(house: House) -> None:
    """Below the messages: each costs its own connection and nothing else."""
    handshake = (
        "GET /ws/chat/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Authorization: Bearer {house.key}\r\n\r\n"
    ).encode()
    wrong = [
        b"\x81\x05hello",  # not masked
        b"\x81\x84\x00\x00\x00\x00\xff\xfe\xfd\xfc",  # no UTF-8
        b"\xf1\x80\x00\x00\x00\x00",  # reserved bits
        b"\x83\x80\x00\x00\x00\x00",  # a kind that there is not
        b"\x80\x80\x00\x00\x00\x00",  # the rest of nothing
        b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",  # of 8 EiB
        b"\x81\xff\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00",
        b"\x09\x80\x00\x00\x00\x00",  # a ping in pieces
        b"\x88\x81\x00\x00\x00\x00x",  # half a close code
        b"\x88\x82\x00\x00\x00\x00\x00\x01",
        bytes(range(256)),
    ]

    async def send(frame: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.stack.gateway(0).port)
        writer.write(handshake)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame)
        try:
            await asyncio.wait_for(reader.read(), 30)
        except ConnectionResetError:
            pass  # it had not read all of it
        writer.close()

    async with undisturbed(house):
        await asyncio.gather(*(send(frame) for frame in wrong * 10))
        for size in (1024 * 1024 + 1, 3_000_000):
            headers = {"Authorization": f"Bearer {house.key}"}
            async with connect(house.socket_url, additional_headers=headers) as socket:
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await answered(socket, "x" * size)
                assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


async def answered(socket: ClientConnection, text: str) -> str | bytes:
    await socket.send(text)
    return await socket.recv()


async def test_too_much_and_too_slow(house: House) -> None:
    async with undisturbed(house):
        answer = house.ask("POST", "/v1/sessions", house.key, content=b"x" * (4 * 1024 * 1024 + 1))
        assert (answer.status_code, code_of(answer)) == (413, "request_too_large")
        beginnings = [
            b"",
            b"GET /v1/mod",
            b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nX-A: ",
            b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
            b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{",
            b"GET /ws/chat/ HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n",
        ]
        slow = []
        for beginning in beginnings * 40:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.stack.gateway(0).port)
            writer.write(beginning)
            slow.append((reader, writer))
        for _ in range(20):  # a byte now and then
            for _, writer in slow:
                writer.write(b"a")
            assert house.ask("GET", "/v1/models", house.key).status_code == 200
        for _, writer in slow:
            writer.close()
