"""What a reader has got is counted although its gateway, or the database, was lost before it was stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.delivery.story import Door, Story
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

TOKENS = 30
END = TOKENS + 2


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm") as engine:
        yield engine


def delivered(stack: Stack, story: Story) -> int:
    query = "SELECT delivered_seq FROM session_fence WHERE session_id = %s"
    return stack.sql(query, story.session_id)[0][0]


async def ended_unread(stack: Stack, door: Door, text: str) -> Story:
    story = await door.create(stack.gateway().url, question(text, TOKENS))
    state = "SELECT state FROM streaming_streamsession WHERE id = %s"
    await until(lambda: stack.sql(state, story.session_id) == [("completed",)])
    return story


@asynccontextmanager
async def read_but_not_stored(
    stack: Stack, door: Door, story: Story, url: str
) -> AsyncIterator[None]:
    """The reader has everything, and what it has got waits for the session's row."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(stack.database_url) as connection:
        connection.execute(
            "SELECT 1 FROM session_fence WHERE session_id = %s FOR UPDATE", [story.session_id]
        )
        await door.read(url, story)
        assert story.is_whole
        await until(lambda: stack.sql(waiting)[0][0] > 0)
        yield


async def test_the_database_restarts_before_it_is_stored(
    start_stack: Callable[..., Stack], engine: SimulatorProcess
) -> None:
    stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], private_postgres=True)
    async with Door(stack.api_key(on_disconnect="finish")) as door:
        story = await ended_unread(stack, door, "restart")
        with pytest.raises(psycopg.OperationalError):
            async with read_but_not_stored(stack, door, story, stack.gateway().url):
                stack.stop_postgres()
        stack.start_postgres()
        await until(lambda: delivered(stack, story) == END, 20)
    kinds = (
        "SELECT kind FROM streaming_outboxmessage WHERE session_id = %s ORDER BY id DESC LIMIT 1"
    )
    assert stack.sql(kinds, story.session_id) == [("session_delivered",)], (
        "billing has to hear of it"
    )


async def test_the_gateway_is_killed_before_it_is_stored(
    start_stack: Callable[..., Stack], engine: SimulatorProcess
) -> None:
    """Then the reader's own acknowledgement is the only evidence that there is, and good enough."""
    stack = start_stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"])
    async with Door(stack.api_key(on_disconnect="finish")) as door:
        story = await ended_unread(stack, door, "killed")
        unread = await ended_unread(stack, door, "unread")
        assert await door.ack(stack.gateway(0).url, unread, 20) == (200, {"delivered_seq": 0})
        async with read_but_not_stored(stack, door, story, stack.gateway(1).url):
            await asyncio.to_thread(stack.gateway(1).kill)
        assert delivered(stack, story) == 0
        async with asyncio.timeout(15):  # PostgreSQL notices the death a moment later
            url = stack.gateway(0).url
            while (await door.ack(url, story, END))[1]["delivered_seq"] < END:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert delivered(stack, story) == END
