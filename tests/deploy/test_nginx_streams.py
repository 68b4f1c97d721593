"""Streams through nginx: each token at once, whole, from whichever gateway, over every protocol."""

from __future__ import annotations

import asyncio

from tests.deploy.conftest import House
from tests.durability.reader import Seen, question, until
from tests.websocket.talk import answer_to, chat


async def test_a_token_arrives_before_the_next_ones_are_there(house: House) -> None:
    async with house.readers() as readers:
        seen = Seen(question("at once", 150))
        asking = asyncio.create_task(readers.ask(seen.messages, seen=seen))
        await until(lambda: bool(seen.tokens), 30)
        assert house.running == 1, "what came had waited for the end"
        await asking
    assert seen.is_whole, seen.trouble
    assert "content-encoding" not in seen.headers
    assert seen.headers["x-accel-buffering"] == "no", "for the next proxy"
    assert seen.headers["x-session-id"]


async def test_an_event_is_not_kept_until_more_comes(house: House) -> None:
    """The gateway says something, and then nothing for 40 s: a buffer would be handed on only then."""
    async with (
        asyncio.timeout(20),
        house.readers() as readers,
        readers.client.get("/v1/diagnostics/stream?seconds=40&interval=40") as response,
    ):
        assert (await response.content.readuntil(b"\n\n")).startswith(b"event: open")


async def test_500_streams_at_once(house: House) -> None:
    async with house.readers() as readers:
        answers = await readers.ask_many(500, "many", 20)
    assert [seen.trouble for seen in answers if not seen.is_whole] == []
    sessions = {seen.session_id for seen in answers}

    def taken() -> list[str]:
        return [line["gateway"] for line in house.nginx.requests() if line["session"] in sessions]

    await until(lambda: len(taken()) == 500, 10)
    counts = [taken().count(f"127.0.0.1:{gateway.port}") for gateway in house.stack.gateways]
    assert sum(counts) == 500
    assert min(counts) >= 200, "least_conn spreads them"


async def test_a_reader_comes_back_through_nginx_and_gets_another_gateway(house: House) -> None:
    """Last-Event-ID, after a cut and after the death of the gateway that worked on the answer."""
    async with house.client() as client:
        reading = await client.create(question("come back", 300))
        await client.read(reading, leave_at=20)
        first = asyncio.create_task(client.read(reading))
        await until(lambda: reading.seq >= 60, 30)
        house.owner_of(reading.session_id).kill()
        await first
        await client.read_on(reading, seconds=60)
    reading.must_be_whole()
    assert len(reading.connections) >= 3
    assert house.sessions() == len(
        house.stack.sql("SELECT DISTINCT session_id FROM streaming_attempt")
    ), "no answer was begun twice"


async def test_a_websocket_with_ack_and_stop(house: House) -> None:
    async with house.talk() as mine:
        request = chat("over a socket", 60)
        followed = await mine.begin(request)
        stopped = await mine.begin(chat("stop me", 3000))
        await mine.read_until(lambda: stopped.cursor >= 20, 30)
        session, acked = stopped.opening["session"], stopped.cursor
        await mine.say("ack", session=session, seq=acked)
        await mine.say("stop", session=session)
        await mine.read_until(lambda: followed.end is not None and stopped.end is not None, 30)
        assert followed.text == answer_to(request)
        assert stopped.end is not None
        assert stopped.end["state"] == "stopped"
        delivered = "SELECT delivered_seq FROM session_fence WHERE session_id = %s"
        await until(lambda: house.stack.sql(delivered, session)[0][0] >= acked, 10)


async def test_http2_has_many_streams_on_one_connection(house: House) -> None:
    async with house.http2_reader() as reader:
        body = {"model": "sim-model", "stream": True, "temperature": 0}
        asked = [
            reader.ask("/v1/chat/completions", house.key, {**body, "messages": question(f"h2 {n}", 30)})
            for n in range(20)
        ]  # fmt: skip
        await until(lambda: all(reader.streams[number].ended for number in asked), 30)
        for number in asked:
            stream = reader.streams[number]
            assert stream.status == 200
            assert stream.body.endswith(b"data: [DONE]\n\n")
            assert "connection" not in stream.headers
