"""The planned end of a process: nobody loses a token by it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.delivery.conftest import PACE
from tests.delivery.story import Door, Story, outcome, state_of
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack

EXIT_SECONDS = 3.0


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm", pace=PACE) as engine:
        yield engine


def stack_with(start_stack: Callable[..., Stack], engine: SimulatorProcess, **env: str) -> Stack:
    return start_stack(
        gateways=2, engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "2", **env}
    )


async def exit_code(gateway: Gateway, seconds: float) -> int:
    return await asyncio.to_thread(gateway.wait, seconds)


async def test_new_sessions_are_refused_with_503(start_stack, engine) -> None:
    """A request that was being sent when the signal came: later ones can't connect at all."""
    stack = stack_with(start_stack, engine, SHUTDOWN_GRACE="3")
    gateway, key = stack.gateway(), stack.api_key()
    body = b'{"model": "sim-model", "messages": [{"role": "user", "content": "late"}]}'
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(
            f"POST /v1/sessions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        async with Readers(gateway.url, key) as readers:
            streaming = asyncio.create_task(readers.ask(question("keeps it up", 150)))
            await asyncio.sleep(0.3)
            gateway.terminate()
            await asyncio.sleep(0.3)
            client.sendall(body)
            client.settimeout(3)
            answer = b""
            while not answer.endswith(b"}"):
                answer += await asyncio.to_thread(client.recv, 65536)
            assert answer.startswith(b"HTTP/1.1 503"), answer
            assert b"retry-after" in answer.lower()
            assert b'"code":"shutting_down"' in answer
            with pytest.raises(OSError, match="Connect call failed"):
                await asyncio.open_connection("127.0.0.1", gateway.port)
            assert (await streaming).is_whole
    assert await exit_code(gateway, EXIT_SECONDS) == 0


async def test_resumable_readers_are_moved_and_plain_streams_finish(start_stack, engine) -> None:
    stack = stack_with(start_stack, engine, SHUTDOWN_GRACE="20")
    old, new = stack.gateways
    async with Door(stack.api_key()) as door, Readers(old.url, door.key) as readers:
        plain = [asyncio.create_task(readers.ask(question(f"plain {n}", 250))) for n in range(5)]
        stories = [await door.create(old.url, question(f"moved {n}", 250)) for n in range(5)]
        first = [asyncio.create_task(door.read(old.url, story)) for story in stories]
        await until(lambda: all(story.cursor > 20 for story in stories))
        asked = time.monotonic()
        old.terminate()
        assert await asyncio.gather(*first) == [False] * 5
        assert time.monotonic() - asked < 1.0
        for story in stories:
            assert story.retries[-1] == 50
            assert story.comments[-1][1].startswith(b": moving")
            assert story.cursor < 200
        # The owner goes on with them; they are read at the other process meanwhile.
        await asyncio.gather(*(door.read_on([new.url], story) for story in stories))
        assert all(story.is_whole for story in stories)
        for seen in await asyncio.gather(*plain):
            assert seen.is_whole, seen.trouble
    assert await exit_code(old, EXIT_SECONDS) == 0
    assert {outcome(stack, story).state for story in stories} == {"completed"}
    assert "Traceback" not in old.log


async def test_what_outlasts_the_grace_is_continued_elsewhere(start_stack, engine) -> None:
    stack = stack_with(start_stack, engine, SHUTDOWN_GRACE="1")
    old, new = stack.gateways
    async with Door(stack.api_key()) as door, Readers(old.url, door.key) as readers:
        moved = await door.create(old.url, question("moved", 500))
        await door.read(old.url, moved, leave_at=20)
        unread = await door.create(old.url, question("unread", 500))
        plain = asyncio.create_task(readers.ask(question("plain", 500)))
        await asyncio.sleep(0.3)
        old.terminate()
        reading = asyncio.create_task(door.read_on([new.url], moved))
        seen = await plain
        assert seen.error is not None
        assert seen.error["resumable"], seen.error
        assert await exit_code(old, 1 + EXIT_SECONDS) == 0
        await reading
        assert moved.is_whole
        for session_id in (unread.session_id, seen.session_id):
            story = Story([], session_id)
            assert state_of(stack, story) == ("suspended", "gateway_shutdown")
        # The plain stream's client finds the rest by the sessions API.
        rest = Story(seen.messages, seen.session_id)
        await asyncio.gather(*(door.read_on([new.url], story) for story in (rest, unread)))
        assert rest.is_whole
        assert rest.text.startswith(seen.text)
        assert unread.is_whole
    kinds = "SELECT kind, data->>'cause' FROM streaming_sessionevent WHERE session_id = %s"
    assert ("suspended", "gateway_shutdown") in stack.sql(kinds, moved.session_id)


@pytest.mark.parametrize("policy", ["cancel", "finish"])
async def test_a_move_is_no_disconnect(start_stack, engine, policy: str) -> None:
    stack = stack_with(start_stack, engine, SHUTDOWN_GRACE="20")
    old, new = stack.gateways
    async with Door(stack.api_key(on_disconnect=policy)) as door:
        story = await door.create(old.url, question("moved", 250))
        reading = asyncio.create_task(door.read(old.url, story))
        await until(lambda: story.cursor > 20)
        old.terminate()
        await reading
        await asyncio.sleep(0.7)
        await door.read_on([new.url], story)
        assert story.is_whole


async def test_max_connection_age_moves_resumable_readers(start_stack, engine) -> None:
    stack = stack_with(start_stack, engine, MAX_CONNECTION_AGE="0.6")
    url = stack.gateway().url
    async with Door(stack.api_key()) as door, Readers(url, door.key) as readers:
        plain = asyncio.create_task(readers.ask(question("plain", 200)))
        story = await door.create(url, question("old age", 200))
        await door.read_on([url], story)
        assert story.is_whole
        assert 3 <= story.connections <= 5
        assert story.retries.count(50) == story.connections - 1
        assert (await plain).is_whole


async def test_rolling_restart_loses_no_stream(start_stack, engine) -> None:
    stack = stack_with(start_stack, engine, SHUTDOWN_GRACE="30")
    urls = [gateway.url for gateway in stack.gateways]
    end = asyncio.get_running_loop().time() + 6.0
    async with Door(stack.api_key()) as door:

        async def plain(number: int) -> int:
            """A client that tries again as long as it was told nothing."""
            count = 0
            while asyncio.get_running_loop().time() < end:
                async with Readers(urls[(number + count) % 2], door.key) as readers:
                    seen = await readers.ask(question(f"plain {number} {count}", 60))
                if seen.status not in (0, 503):
                    assert seen.is_whole, seen.trouble
                count += seen.status == 200
                number += seen.status != 200
                await asyncio.sleep(0 if seen.status == 200 else 0.05)
            return count

        async def resuming(number: int) -> int:
            count = 0
            while asyncio.get_running_loop().time() < end:
                turn = urls[number % 2 :] + urls[: number % 2]
                try:
                    story = await door.create(turn[0], question(f"resuming {number} {count}", 60))
                except (AssertionError, OSError, TimeoutError):
                    number += 1
                    await asyncio.sleep(0.05)
                    continue
                await door.read_on(turn, story)
                assert story.is_whole
                count += 1
            return count

        clients = [
            asyncio.create_task(client(n)) for client in (plain, resuming) for n in range(10)
        ]
        for gateway in stack.gateways:
            await asyncio.sleep(1.0)
            gateway.terminate()
            assert await exit_code(gateway, 20) == 0
            await asyncio.to_thread(gateway.start_again)
        answers = sum(await asyncio.gather(*clients))
    print(f"{answers} answers during a rolling restart, all whole")
    assert answers > 60
    states = stack.sql("SELECT state, count(*) FROM streaming_streamsession GROUP BY state")
    assert dict(states).keys() <= {"completed", "suspended"}, states
    assert engine.stats()["wrong_prefixes"] == 0
