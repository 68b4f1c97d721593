"""What operators do, and what happens to them: reloads, drains, dead gateways. No stream notices."""

from __future__ import annotations

import asyncio
import signal
from uuid import uuid4

import aiohttp
import pytest

from gateway_project.embedded.process import free_port
from tests.deploy.conftest import House, open_directory
from tests.deploy.nginx import Nginx
from tests.durability.reader import Readers, Seen, question, until
from tests.server import harness


async def streams(house: House, readers, count: int, tokens: int) -> tuple[list, list[Seen]]:
    """``count`` readers that have their first tokens."""
    seen = [Seen(question(f"upkeep {number}", tokens)) for number in range(count)]
    tasks = [asyncio.create_task(readers.ask(one.messages, seen=one)) for one in seen]
    await until(lambda: all(len(one.tokens) >= 3 for one in seen), 30)
    return tasks, seen


async def test_a_reload_under_streams(house: House) -> None:
    """Old workers end what they have; new requests get new workers, at once."""
    old = house.nginx.workers()
    async with house.readers() as readers, house.talk() as mine:
        followed = await mine.begin(
            {"model": "sim-model", "messages": question("on", 300), "temperature": 0}
        )
        tasks, seen = await streams(house, readers, 20, 300)
        house.nginx.reload()
        await until(lambda: bool(house.nginx.workers() - old), 30)
        assert not any(one.done for one in seen), "they should have lasted longer than the reload"
        later = await asyncio.gather(
            *(readers.ask(question(f"later {number}", 10)) for number in range(10))
        )
        await asyncio.gather(*tasks)
        await mine.read_until(lambda: followed.end is not None, 30)
    assert [one.trouble for one in [*seen, *later] if not one.is_whole] == []
    await until(lambda: not house.nginx.workers() & old, 30)


async def test_a_gateway_is_drained_under_streams(house: House) -> None:
    """SIGTERM: its streams end whole, and new requests go to the other one."""
    async with house.readers() as readers:
        tasks, seen = await streams(house, readers, 20, 300)
        draining = house.stack.gateway(0)
        draining.terminate()
        await until(lambda: not listens(draining.port), 30)
        later = await asyncio.gather(
            *(readers.ask(question(f"later {number}", 10)) for number in range(10))
        )
        await asyncio.gather(*tasks)
        assert await asyncio.to_thread(draining.wait, 30) == 0
    assert [one.trouble for one in [*seen, *later] if not one.is_whole] == []


async def test_a_dead_gateway_is_routed_away(house: House) -> None:
    house.stack.gateway(0).kill()
    async with house.readers() as readers:
        answers = await readers.ask_many(20, "without it", 10)
        assert [seen.trouble for seen in answers if not seen.is_whole] == []
        house.stack.gateway(0).start_again()
        # It gets requests again once its two seconds are over.
        port = house.stack.gateway(0).port

        async def asked() -> bool:
            seen = await readers.ask(question("is it back", 1))
            assert seen.is_whole, seen.trouble
            return f"127.0.0.1:{port}" in {r["gateway"] for r in house.nginx.requests()[-5:]}

        async with asyncio.timeout(30):
            while not await asked():
                pass


async def test_no_gateway_at_all_is_an_error_like_ours() -> None:
    with open_directory() as directory, Nginx(directory, [free_port()]) as nginx:
        tls = nginx.tls()
        async with Readers(nginx.url, "a key", tls=tls) as readers:
            seen = await readers.ask(question("nobody", 10))
            # nginx writes such an error down, with the whole request; this one has a token in its URL.
            path = f"/v1/sessions/{uuid4()}/events?stream_token=secret-4712"
            async with readers.client.get(path) as response:
                assert response.status == seen.status == 502
        assert "Connection refused" in nginx.errors
        assert "secret-4712" not in nginx.errors
    assert seen.error is not None
    assert seen.error["code"] == "gateway_unavailable"
    assert seen.headers["retry-after"] == "1"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-request-id"]


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_post_is_never_sent_twice(method: str) -> None:
    """A gateway dies with a request in its hands: only what changes nothing is asked of the other.

    Our server without the gateway in it, which starts faster.
    """
    with open_directory() as directory:
        servers = [harness.start(directory / f"log-{number}") for number in range(2)]
        try:
            with Nginx(directory, [server.port for server in servers]) as nginx:
                status = await asyncio.wait_for(asked_of_the_dying(nginx, servers, method), 60)
        finally:
            for server in servers:
                harness.stop(server)
    assert status == (200 if method == "GET" else 502)


async def asked_of_the_dying(
    nginx: Nginx, servers: list[harness.ServerProcess], method: str
) -> int:
    """The status that the client gets."""
    for server in servers:  # takes connections, by its kernel, and answers nothing
        server.process.send_signal(signal.SIGSTOP)
    connector = aiohttp.TCPConnector(ssl=nginx.tls())
    async with aiohttp.ClientSession(connector=connector) as http:
        asking = asyncio.create_task(http.request(method, f"{nginx.url}/echo/1"))
        await until(lambda: any(waiting_at(server.port) for server in servers), 30)
        hit, other = sorted(servers, key=lambda server: waiting_at(server.port), reverse=True)
        hit.process.kill()
        other.process.send_signal(signal.SIGCONT)
        async with await asking as response:
            return response.status


def listens(port: int) -> bool:
    return any(state == "0A" and number == port for number, state, _ in sockets())


def waiting_at(port: int) -> int:
    """Bytes of requests that the kernel holds for a process that does not read them."""
    return sum(queue for number, state, queue in sockets() if number == port and state == "01")


def sockets() -> list[tuple[int, str, int]]:
    """Local port, state and bytes to be read of every TCP socket of this machine."""
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table.readlines()[1:]]
    return [(int(f[1].rsplit(":")[1], 16), f[3], int(f[4].split(":")[1], 16)) for f in lines]
