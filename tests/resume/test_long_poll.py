"""Long polling: the same log, poll by poll, on any process."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from tests.durability.reader import until
from tests.resume.events import Client, Reading, question, urls
from tests.resume.test_visits import visits
from tests.stack import Stack


async def poll(
    client: Client, reading: Reading, gateway: int = 0, **query: Any
) -> tuple[int, dict[str, Any]]:
    """One poll from the cursor that ``reading`` has; what it brings is taken."""
    url = f"{client.urls[gateway]}/v1/sessions/{reading.session_id}/events"
    if reading.cursor:
        query.setdefault("last_id", reading.cursor)
    async with client.http.get(url, params=query) as response:
        body = await response.json() if response.status != 204 else {}
    for event in body.get("events", ()):
        name, data = event["event"], event["data"]
        if name == "token":
            assert event["id"] == data["seq"] > reading.cursor
            reading.tokens.append((data["seq"], data["text"]))
        elif name in ("done", "error"):
            reading.ends.append((name, data))
        else:
            reading.controls.append((name, data))
        reading.cursor = event.get("id", reading.cursor)
    if "cursor" in body:
        assert body["cursor"] == reading.cursor
        assert body["ended"] == bool(reading.ends)
    return response.status, body


def count(stack: Stack, query: str, *arguments: Any) -> int:
    ((found,),) = stack.sql(query, *arguments)
    return found


async def test_an_answer_is_read_poll_by_poll_on_any_process(stack_of_two):
    stack, (first, second) = stack_of_two(pace=60)
    key = stack.api_key()
    async with Client(urls(stack), key) as client:
        reading = await client.create(question("polled", 150))
        status, body = await poll(client, reading, wait=20)
        assert status == 200
        assert body["events"][0]["event"] == "session"
        assert body["events"][0]["data"]["session_id"] == reading.session_id
        number = 1
        while not reading.ends:
            if number == 4:
                await killed_while_it_speaks(stack, reading, first, second)
            # Only the owner tells what happens to the answer.
            await poll(client, reading, gateway=number % 2 if number < 4 else 0, wait=20)
            number += 1
        reading.must_be_whole()
        # Gathered: far fewer polls than tokens. Told in order, the failure too.
        assert number < 75
        names = [name for name, _ in reading.controls]
        assert names[0] == "session"
        assert "recovered" in names

        # The cursor of the end, of beyond it, and of a stranger.
        assert (await poll(client, reading, wait=5))[0] == 204
        assert (await poll(client, reading, last_id=9999, wait=5))[0] == 409
        for wrong in ("-1", "26", "soon", "nan"):
            assert (await poll(client, reading, wait=wrong))[0] == 400
    async with Client(urls(stack), stack.api_key("other")) as client:
        assert (await poll(client, reading, wait=0))[0] == 404

    # One visit for each process, though there were many polls; who has it all has not left.
    kinds = [kind for kind, _, _ in visits(stack, reading.session_id)]
    assert kinds == ["reader_joined", "reader_joined"]
    await until(
        lambda: (
            stack.sql(
                "SELECT delivered_seq FROM session_fence WHERE session_id = %s", reading.session_id
            )
            == [(reading.cursor,)]
        )
    )


async def killed_while_it_speaks(stack, reading, *engines) -> None:
    ((node,),) = stack.sql(
        "SELECT node_name FROM streaming_attempt WHERE session_id = %s", reading.session_id
    )
    engines["ab".index(node)].kill()


async def test_a_poll_waits_for_news_and_one_that_does_not_is_answered_at_once(stack_of_two):
    stack, engines = stack_of_two(gateways=1)
    for engine in engines:
        engine.set_fault(kind="freeze", at_token=3)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("silent", 30))
        while reading.seq < 3:
            await poll(client, reading, wait=20)
        reading.controls.clear()
        _, body = await poll(client, reading, wait=0)
        assert (body["events"], body["ended"]) == ([], False)
        # It waits, and says what has happened to the answer as soon as it does.
        waiting = asyncio.create_task(poll(client, reading, wait=25))
        await asyncio.sleep(0)
        url = f"{client.urls[0]}/v1/sessions/{reading.session_id}/stop"
        async with client.http.post(url) as response:
            assert response.status == 200
        await waiting
        assert [end["state"] for _, end in reading.ends] == ["stopped"]
        assert reading.seq == 3


async def test_clients_report_numbers_only(stack_of_two):
    stack, _ = stack_of_two(gateways=1)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("reported", 5))
        url = f"{client.urls[0]}/v1/sessions/{reading.session_id}/report"

        async def report(value: Any, http: aiohttp.ClientSession = client.http) -> int:
            async with http.post(url, json=value) as response:
                return response.status

        for wrong in (
            {}, [], {"note": "hello"}, {"rtt_ms": "12"}, {"rtt_ms": -1}, {"rtt_ms": True},
            {"rtt_ms": 1e300}, {"transport": "pigeon"},
        ):  # fmt: skip
            assert await report(wrong) == 400, wrong
        good = {"first_paint_ms": 12.6, "drift_ms": -40, "transport": "sse", "note": "a text"}
        for _ in range(12):
            assert await report(good) == 204
        rows = stack.sql("SELECT data FROM streaming_sessionevent WHERE kind = 'client_report'")
        assert rows == [({"first_paint_ms": 13, "drift_ms": -40, "transport": "sse"},)] * 10
    async with Client(urls(stack), stack.api_key("other")) as client:
        assert await report(good, client.http) == 404
