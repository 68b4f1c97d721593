"""Spare connections, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from streaming.engines import spares
from streaming.engines.http import EngineClient
from streaming.engines.sockets import Watch
from tests.durability.reader import until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Node:
    """Counts its connections, and answers each request on them."""

    def __init__(self) -> None:
        self.made = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        self.open.add(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self, "127.0.0.1")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self.open):
            writer.close()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    one = Node()
    yield one
    await one.stop()


async def ask(client: EngineClient, url: str) -> None:
    reply = await client.post(f"{url}/v1/completions", b"{}", {}, Watch())
    assert (reply.status, b"".join([part async for part in reply])) == (200, b"ok")
    await reply.aclose()


async def test_requests_take_spares_and_make_none(client, node):
    url = await node.start()
    await client.keep_spares(url, 3)
    assert node.made == 3
    await asyncio.gather(*(ask(client, url) for _ in range(3)))
    assert node.made == 3


async def test_no_more_are_kept_than_wanted(client, node):
    url = await node.start()
    await client.keep_spares(url, 3)
    await client.keep_spares(url, 1)
    await until(lambda: len(node.open) == 1)
    client.drop_spares(url)
    await until(lambda: not node.open)
    assert node.made == 3


async def test_a_spare_that_its_server_has_closed_is_not_used(client, node):
    url = await node.start()
    await client.keep_spares(url, 2)
    for writer in list(node.open):
        writer.close()
    await until(lambda: not node.open)
    await ask(client, url)
    assert node.made == 3


async def test_a_spare_that_was_closed_a_moment_ago_is_not_used(client):
    connector = client._connector
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        await connector.keep_spares(url, 1, 1.0)
        spare = server.accept()[0]
        spare.close()  # our loop has not heard of it yet
        taken = await connector.take(URL(url), 1.0)
        with server.accept()[0] as anew:
            assert taken.socket.getsockname() == anew.getpeername()
            taken.close()


async def test_a_spare_that_has_spoken_unasked_is_not_used(client, node):
    url = await node.start()
    await client.keep_spares(url, 1)
    await until(lambda: node.open)
    next(iter(node.open)).write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(0.05)
    await ask(client, url)
    assert node.made == 2


async def test_a_connection_with_half_a_request_on_it_is_not_used_again(client):
    made: list[asyncio.StreamWriter] = []

    async def refuse_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)

    server = await asyncio.start_server(refuse_unread, "127.0.0.1")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for body in (b" " * 20_000_000, b"{}"):
        reply = await client.post(url, body, {}, Watch())
        assert b"".join([part async for part in reply]) == b"ok"
        await reply.aclose()
    assert len(made) == 2
    server.close()
    for writer in made:
        writer.close()


async def test_spares_do_not_grow_old(client, node, monkeypatch):
    url = await node.start()
    await client.keep_spares(url, 2)
    monkeypatch.setattr(spares, "LONGEST_REST", 0.0)
    await client.keep_spares(url, 2)
    assert node.made == 4
    await until(lambda: len(node.open) == 2)


async def test_a_node_that_is_away_gets_none(client, node):
    url = await node.start()
    await node.stop()
    await client.keep_spares(url, 2)
    assert node.made == 0


async def test_a_node_that_goes_while_its_connections_are_made_keeps_none(client, node):
    url = await node.start()
    making = asyncio.create_task(client.keep_spares(url, 3))
    await asyncio.sleep(0)  # the first is under way
    client.drop_spares(url)
    await making
    await until(lambda: node.made == 1 and not node.open)
