"""What operators do, and what happens to them: reloads, drains, dead gateways. No stream notices."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.deploy.conftest import House
from tests.durability.reader import Seen, question, until


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


async def test_no_gateway_at_all_is_an_error_like_ours(house: House) -> None:
    for gateway in house.stack.gateways:
        gateway.kill()
    async with house.readers() as readers, house.client() as client:
        seen = await readers.ask(question("nobody", 10))
        # An error that nginx writes down, with the whole request; this one has a token in its URL.
        path = f"/v1/sessions/{uuid4()}/events?stream_token=secret-4712"
        status, _ = await client.call("GET", path)
    assert seen.status == status == 502
    assert "Connection refused" in house.nginx.errors
    assert "secret-4712" not in house.nginx.errors
    assert seen.error is not None
    assert seen.error["code"] == "gateway_unavailable"
    assert seen.headers["retry-after"] == "1"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-request-id"]


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_post_is_never_sent_twice(house: House, method: str) -> None:
    """A gateway dies with a request in its hands: what changes nothing is asked of the other one."""
    async with house.client() as client:
        finished = await client.read_on(await client.create(question("asked after", 5)))
        before = house.sessions()
        first, second = house.stack.gateways
        for gateway in (first, second):
            gateway.stop()  # takes connections, by its kernel, and answers nothing
        path = "/v1/sessions"
        if method == "GET":
            path = f"/v1/sessions/{finished.session_id}"
        body = {"model": "sim-model", "messages": question("once", 5)} if method == "POST" else None
        asking = asyncio.create_task(client.call(method, path, body))
        await until(lambda: waiting_at(first.port) + waiting_at(second.port) > 0, 30)
        hit, other = (first, second) if waiting_at(first.port) else (second, first)
        hit.kill()
        other.cont()
        status, answer = await asyncio.wait_for(asking, 30)
    if method == "GET":
        assert (status, answer["id"]) == (200, finished.session_id)
    else:
        assert (status, answer["error"]["code"]) == (502, "gateway_unavailable")
        assert house.sessions() == before


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
