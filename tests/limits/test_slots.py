"""Streams at once, over two gateway processes, and the queue for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tests.durability.reader import Readers, Seen, question, until
from tests.limits.conftest import Desk
from tests.resume.events import Client, Reading, urls
from tests.websocket.talk import chat, talk

LONG = 3000
"""Tokens of an answer that lasts until its reader leaves."""


async def test_slots_are_shared_and_waited_for(desk: Desk) -> None:
    """The third waits in another process until one of two ends; one that leaves leaves the queue."""
    key, tenant_id = desk.key(streams_at_once=2)
    scope = f"tenant.{tenant_id}"
    async with (
        Readers(desk.stack.gateway(0).url, key) as here,
        Readers(desk.stack.gateway(1).url, key) as there,
    ):
        holding = [Seen(question(f"hold {number}", LONG)) for number in range(2)]
        tasks = [asyncio.create_task(here.ask(seen.messages, seen=seen)) for seen in holding]
        await until(lambda: all(seen.tokens for seen in holding), 30)
        assert desk.slots(scope) == {seen.session_id for seen in holding}
        leaving = asyncio.create_task(there.ask(question("leave", 5)))
        await until(lambda: desk.waiting(tenant_id) == 1, 30)
        leaving.cancel()
        await until(lambda: desk.waiting(tenant_id) == 0, 30)
        third = asyncio.create_task(there.ask(question("third", 5)))
        await until(lambda: desk.waiting(tenant_id) == 1, 30)
        listed = desk.stack.manage("limits").splitlines()
        (row,) = [line for line in listed if "2 of 2" in line]
        assert row.split()[-1] == "1", row
        assert not third.done()
        tasks[0].cancel()
        seen = await asyncio.wait_for(third, 60)
        assert seen.is_whole, seen.trouble
        tasks[1].cancel()
        await until(lambda: desk.slots(scope) == set(), 30)


async def test_who_waits_the_most_holds_up_nobody_else(desk: Desk) -> None:
    """One end user has twenty requests in the queue before another one's comes: it is second."""
    key, tenant_id = desk.key(streams_at_once=1)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(Readers(gateway.url, key))
            for gateway in desk.stack.gateways[:2]
        ]
        holding = Seen(question("hold", LONG))
        holder = asyncio.create_task(first.ask(holding.messages, seen=holding, user="many"))
        await until(lambda: bool(holding.tokens), 30)
        many = [
            asyncio.create_task(readers.ask(question(f"many {number}", 2), user="many"))
            for readers in (first, second)
            for number in range(10)
        ]
        await until(lambda: desk.waiting(tenant_id) == 20, 30)
        one = asyncio.create_task(second.ask(question("one", 2), user="one"))
        await until(lambda: desk.waiting(tenant_id) == 21, 30)
        holder.cancel()
        answers = await asyncio.wait_for(asyncio.gather(one, *many), 90)
        assert all(seen.is_whole for seen in answers), [seen.trouble for seen in answers]
        order = desk.stack.sql(
            "SELECT end_user FROM streaming_streamsession WHERE tenant_id = %s ORDER BY created_at",
            tenant_id,
        )
        assert [user for (user,) in order].index("one") <= 2
        assert desk.used(f"tenant.{tenant_id}", 1) == 0


async def test_429_after_the_queue(desk: Desk) -> None:
    """Also over a WebSocket, where all else goes on meanwhile."""
    name, tenant_id = desk.tenant(user_streams_at_once=1)
    key = desk.stack.api_key(name)
    short = desk.stack.start_gateway(QUEUE_SECONDS="1.5")
    async with (
        Readers(desk.stack.gateway(0).url, key) as here,
        Readers(short.url, key) as there,
        talk(f"{short.websocket_url}/ws/chat/", key) as socket,
    ):
        holding = Seen(question("hold", LONG))
        holder = asyncio.create_task(here.ask(holding.messages, seen=holding, user="u"))
        await until(lambda: bool(holding.tokens), 30)
        await socket.say("start", request=chat("me too", 3, user="u"), ref="late")
        await until(lambda: desk.waiting(tenant_id) == 1, 30)
        await socket.say("ping")
        await socket.read_until(lambda: len(socket.others) == 2, 30)
        assert [message["type"] for message in socket.others] == ["pong", "error"]
        told = socket.others[1]
        assert (told["ref"], told["error"]["code"]) == ("late", "rate_limit_exceeded")
        assert told["error"]["retry_after"] == 1
        refused = await there.ask(question("refused", 3), user="u")
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        other = await there.ask(question("another's", 3), user="v")
        assert other.is_whole, other.trouble
        holder.cancel()
    short.terminate()


async def test_a_gateway_is_killed(desk: Desk) -> None:
    """Its slots come free, or stay with the session that somebody takes over; tokens count once."""
    limits = {"streams_at_once": 1, "tokens_per_minute": 1_000_000}
    (left_key, _), (key, tenant_id) = desk.key(**limits), desk.key(**limits)
    doomed = desk.stack.start_gateway()
    left, seen = Seen(question("left", LONG)), Seen(question("followed", 400))
    async with (
        Readers(doomed.url, left_key) as left_readers,
        Readers(doomed.url, key) as readers,
        Readers(desk.stack.gateway(0).url, left_key) as left_elsewhere,
        Readers(desk.stack.gateway(0).url, key) as elsewhere,
        Client(urls(desk.stack), key) as client,
    ):
        left_asking = asyncio.create_task(left_readers.ask(left.messages, seen=left))
        asking = asyncio.create_task(readers.ask(seen.messages, seen=seen))
        await until(lambda: min(len(left.tokens), len(seen.tokens)) > 20, 30)
        await until(lambda: desk.seen(seen.session_id) > 0, 30)
        doomed.kill()
        await asyncio.gather(left_asking, asking)
        waiting = [
            asyncio.create_task(others.ask(question("waiting", 3)))
            for others in (left_elsewhere, elsewhere)
        ]
        reading = Reading(seen.session_id, seen.messages, cursor=seen.tokens[-1][0])
        following = asyncio.create_task(client.read_on(reading, gateways=(1,), seconds=60))
        await until(lambda: reading.seq > seen.tokens[-1][0] + 20, 30)
        await until(lambda: seen.session_id in desk.slots(f"tenant.{tenant_id}"), 30)
        await following
        total = reading.answer.completion_tokens
        await until(lambda: desk.seen(seen.session_id) == total, 30)
        for admitted in await asyncio.wait_for(asyncio.gather(*waiting), 60):
            assert admitted.is_whole, admitted.trouble
