"""A connection that is silent without being broken: the client gives it up as it was told."""

from __future__ import annotations

import asyncio

import httpx

from streaming.client import UnbrokenClient
from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.resume.events import Client, urls


async def test_a_connection_that_falls_silent_is_given_up_and_the_answer_is_whole(
    stack_of_two, start_proxy
):
    stack, _ = stack_of_two(
        pace=30, gateways=1, env={"KEEPALIVE_SECONDS": "0.5", "CLIENT_SILENCE": "1"}
    )
    proxy = await start_proxy(stack.gateway().port)
    messages = question("the line goes dead", 150)
    async with UnbrokenClient(proxy.url, stack.api_key()) as client:
        reader = await client.start({"model": "sim-model", "messages": messages, "temperature": 0})

        async def read() -> str:
            return "".join([piece.text async for piece in reader])

        reading = asyncio.create_task(read())
        await until(lambda: reader.seq >= 20)
        assert reader.silence == reader.info["silence_seconds"] == 1.0
        assert proxy.hush() >= 1
        answer = expected_answer(messages)
        assert await reading == answer.text
        assert reader.seq == answer.completion_tokens + 1
        assert reader.reconnects == 1, "once given up, it came back with its cursor"
        assert client.resume(reader.id).silence == 15.0, "nobody has told it anything yet"


async def test_who_asks_for_slow_heartbeats_is_told_to_wait_for_them(stack_of_two):
    stack, _ = stack_of_two(gateways=1)
    key = stack.api_key()
    async with Client(urls(stack), key) as client:
        reading = await client.create(question("slow", 3))
        await client.read_on(reading)
    url = f"{stack.gateway().url}/v1/sessions/{reading.session_id}/events"
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http:
        for query, told in (("", "15.0"), ("?heartbeat=2", "15.0"), ("?heartbeat=30", "45.0")):
            answer = (await http.get(url + query)).text
            assert f'"silence_seconds":{told},' in answer
