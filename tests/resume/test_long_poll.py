"""Long polling: the same log, poll by poll, on any process."""

from __future__ import annotations

import asyncio
from typing import Any

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
    stack, _ = stack_of_two(gateways=1, pace=0.25)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("slow", 30))
        while not reading.seq:
            await poll(client, reading, wait=20)
        _, body = await poll(client, reading, wait=0)
        assert [name for name in body["events"] if name["event"] == "token"] == []
        assert not body["ended"]
        waiting = asyncio.create_task(poll(client, reading, wait=25))
        status, _ = await client.call("POST", f"/v1/sessions/{reading.session_id}/stop")
        assert status == 200
        while not reading.ends:
            await waiting
            waiting = asyncio.create_task(poll(client, reading, wait=25))
        waiting.cancel()
        assert [end["state"] for _, end in reading.ends] == ["stopped"]
        await the_client_reports_numbers_only(client, reading, stack)
    async with Client(urls(stack), stack.api_key("other")) as client:
        path = f"/v1/sessions/{reading.session_id}/report"
        assert (await client.call("POST", path, {"rtt_ms": 1}))[0] == 404


async def the_client_reports_numbers_only(client: Client, reading: Reading, stack: Stack) -> None:
    path = f"/v1/sessions/{reading.session_id}/report"
    for wrong in (
        {}, [], {"note": "hello"}, {"rtt_ms": "12"}, {"rtt_ms": -1}, {"rtt_ms": True},
        {"rtt_ms": 1e300}, {"transport": "pigeon"},
    ):  # fmt: skip
        assert (await client.call("POST", path, wrong))[0] == 400, wrong
    good = {"first_paint_ms": 12.6, "drift_ms": -40, "transport": "sse", "note": "a text"}
    for _ in range(12):
        assert await client.call("POST", path, good) == (204, None)
    rows = stack.sql("SELECT data FROM streaming_sessionevent WHERE kind = 'client_report'")
    assert rows == [({"first_paint_ms": 13, "drift_ms": -40, "transport": "sse"},)] * 10
