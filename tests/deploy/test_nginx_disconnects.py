"""Whoever leaves, and however: nginx tells the gateway at once, and the engine is let go.

The grace period is 0.3 s. The limits here are for machines that are busy; what they must not hide is nginx
keeping the connection, which would last for as long as the answer: 40 s at the pace of these engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import orjson
import pytest

from tests.deploy.conftest import House
from tests.deploy.http2 import Http2Reader
from tests.durability.reader import Seen, question, until

TOKENS = 4000
STAYING = 250
LET_GO_SECONDS = 10.0


async def let_go(house: House, who: str, others: int = 0) -> None:
    """Wait until the engines run only the ``others``."""
    left_at = time.monotonic()
    await until(lambda: house.running <= others, LET_GO_SECONDS)
    print(f"{who}: the engine is let go after {time.monotonic() - left_at:.2f} s")


async def test_a_plain_client_leaves(house: House) -> None:
    async with house.readers() as readers:
        seen = Seen(question("leave", TOKENS))
        asking = asyncio.create_task(readers.ask(seen.messages, seen=seen))
        await until(lambda: len(seen.tokens) >= 5, 30)
        asking.cancel()
        await let_go(house, "HTTP/1.1, closed")


async def test_a_reader_leaves_while_nothing_is_said(house: House) -> None:
    """No write can fail: nginx itself has to look whether the reader is still there."""
    async with house.readers() as readers:
        async with readers.client.get(
            "/v1/diagnostics/stream?seconds=300&interval=300"
        ) as response:
            opening = (await response.content.readuntil(b"\n\n")).split(b"data: ", 1)[1]
            # At once: asyncio's own close() waits up to 30 s for the goodbye of TLS.
            assert response.connection is not None
            assert response.connection.transport is not None
            response.connection.transport.abort()
        path = f"/v1/diagnostics/ended?id={orjson.loads(opening)['id']}"

        async def states() -> set[str]:
            """What the gateways, each asked past nginx, know of it."""
            found = set()
            for gateway in house.stack.gateways:
                async with readers.client.get(gateway.url + path) as response:
                    found.add((await response.json())["state"])
            return found

        async with asyncio.timeout(30):
            while "left" not in (now := await states()):
                assert "running" in now, now
                await asyncio.sleep(0.05)


async def test_a_websocket_leaves(house: House) -> None:
    async with house.talk() as mine:
        followed = await mine.begin(
            {"model": "sim-model", "messages": question("leave", TOKENS), "temperature": 0}
        )
        await mine.read_until(lambda: followed.cursor >= 5, 30)
        mine.socket.transport.abort()
        await let_go(house, "WebSocket, cut")


LEAVE: dict[str, Callable[[Http2Reader, int], None]] = {
    "RST_STREAM": lambda reader, number: reader.reset(number),
    "GOAWAY": lambda reader, number: reader.say_goodbye(),
    "cut": lambda reader, number: reader.cut(),
}


@pytest.mark.parametrize("how", LEAVE)
async def test_an_http2_reader_leaves(house: House, how: str) -> None:
    body = {"model": "sim-model", "stream": True, "temperature": 0}
    async with house.http2_reader() as reader:
        leaving = reader.ask(
            "/v1/chat/completions", house.key, {**body, "messages": question("leave", TOKENS)}
        )
        staying = reader.ask(
            "/v1/chat/completions", house.key, {**body, "messages": question("stay", STAYING)}
        )
        await until(lambda: all(stream.events >= 5 for stream in reader.streams.values()), 30)
        LEAVE[how](reader, leaving)
        if how != "RST_STREAM":
            await let_go(house, f"HTTP/2, {how}")
            return
        await let_go(house, f"HTTP/2, {how}", others=1)
        assert not reader.streams[staying].ended, "it should have lasted longer"
        await until(lambda: reader.streams[staying].ended, 30)
        assert reader.streams[staying].body.endswith(b"data: [DONE]\n\n")
        assert not reader.streams[leaving].ended
