"""A reader is cut at every token and comes back: the same bytes, nothing twice, the end once."""

from __future__ import annotations

import asyncio

import pytest

from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, Reading, question, urls
from tests.stack import Stack

TOKENS = 90
CUTS = range(1, 41)


async def test_a_reader_that_leaves_after_every_event(stack_of_two):
    """One session, left and found again as often as it has events, on both processes in turn."""
    stack, _ = stack_of_two(pace=20)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("every event", 60))
        while not reading.ends:
            gateway = len(reading.connections) % 2
            await client.read(reading, gateway=gateway, leave_at=reading.seq + 1)
        reading.must_be_whole()
        assert len(reading.connections) > 10
        assert (await client.read(reading)).last.status == 204
        epoch = stack.sql(
            "SELECT epoch FROM session_fence WHERE session_id = %s", reading.session_id
        )
        assert epoch == [(1,)], "nobody had to take it over"


async def test_every_cursor_of_a_finished_answer(stack_of_two):
    stack, _ = stack_of_two()
    async with Client(urls(stack), stack.api_key()) as client:
        whole = await client.read_on(await client.create(question("finished", TOKENS)))
        whole.must_be_whole()
        log = stored_log(stack, whole.session_id)
        assert log.text == whole.text
        for cursor in range(len(log.texts) + 1):
            reading = Reading(whole.session_id, whole.messages, cursor)
            await client.read(reading, gateway=cursor % 2)
            assert reading.text == log.between(cursor, len(log.texts)), cursor
            assert reading.strays == []
            assert [name for name, _ in reading.ends] == ["done"], cursor


def kill_engine(stack: Stack, engines: list[SimulatorProcess]) -> None:
    engines[0].kill()


def kill_owner(stack: Stack, engines: list[SimulatorProcess]) -> None:
    stack.gateway(0).kill()


def kill_both(stack: Stack, engines: list[SimulatorProcess]) -> None:
    engines[0].kill()
    stack.gateway(0).kill()


def restart_redis(stack: Stack, engines: list[SimulatorProcess]) -> None:
    stack.restart_redis()


def restart_postgres(stack: Stack, engines: list[SimulatorProcess]) -> None:
    stack.restart_postgres()


@pytest.mark.parametrize(
    ("while_away", "private"),
    [
        (kill_engine, {}),
        (kill_owner, {}),
        (kill_both, {}),
        (restart_redis, {"private_redis": True}),
        (restart_postgres, {"private_postgres": True}),
    ],
)
async def test_cut_and_returning(stack_of_two, while_away, private):
    """As many sessions as cuts; each reader leaves at its token and returns after the blow."""
    stack, engines = stack_of_two(pace=25, **private)
    async with Client(urls(stack), stack.api_key()) as client:
        readings = await asyncio.gather(
            *(client.create(question(f"cut {cut}", TOKENS)) for cut in CUTS)
        )
        await asyncio.gather(
            *(
                client.read(reading, leave_at=cut)
                for cut, reading in zip(CUTS, readings, strict=True)
            )
        )
        assert sum(not reading.ends for reading in readings) > len(readings) / 2
        await asyncio.to_thread(while_away, stack, engines)
        dead = stack.gateway(0).process.poll() is not None
        await asyncio.gather(
            *(client.read_on(reading, gateways=[1] if dead else [0, 1]) for reading in readings)
        )
        for reading in readings:
            reading.must_be_whole()
            stored_log(stack, reading.session_id)
        again = await asyncio.gather(*(client.read(reading, gateway=1) for reading in readings))
        assert {reading.last.status for reading in again} == {204}
    assert sum(engine.stats()["wrong_prefixes"] for engine in engines if engine.is_alive) == 0
