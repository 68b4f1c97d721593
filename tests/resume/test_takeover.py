"""The owner of live sessions is killed, frozen or cut off: somebody else goes on, once."""

from __future__ import annotations

import asyncio
import statistics
import time
from urllib.parse import urlsplit

import pytest

from tests.durability.reader import until
from tests.durability.stored import stored_log
from tests.resume.events import Client, Reading, question, states, urls

STREAMS = 100


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def epochs(stack, readings: list[Reading]) -> list[int]:
    rows = stack.sql(
        "SELECT epoch FROM session_fence WHERE session_id = ANY(%s::uuid[]) ORDER BY session_id",
        [reading.session_id for reading in readings],
    )
    return [row[0] for row in rows]


def events(stack, reading: Reading, kind: str) -> int:
    return stack.sql(
        "SELECT count(*) FROM streaming_sessionevent WHERE session_id = %s AND kind = %s",
        reading.session_id,
        kind,
    )[0][0]


async def begin_reading(
    client: Client, count: int, tokens: int, *, gateway: int = 0, others: tuple[int, ...] = (0,)
) -> tuple[list[Reading], list[asyncio.Task[Reading]]]:
    """Sessions of ``gateway``, each read by a reader that comes back whatever happens."""
    readings: list[Reading] = []

    async def one(number: int) -> Reading:
        reading = await client.create(question(f"stream {number}", tokens), gateway=gateway)
        readings.append(reading)
        return await client.read_on(reading, gateways=others, seconds=60)

    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    await until(lambda: len(readings) == count, 30)
    await until(lambda: all(reading.seq >= 3 for reading in readings), 30)
    return readings, tasks


async def test_a_hundred_streams_outlive_the_process_that_owns_them(stack_of_two, record_property):
    stack, engines = stack_of_two(pace=10)
    async with Client(urls(stack), stack.api_key()) as client:
        readings, tasks = await begin_reading(client, STREAMS, 110, others=(0, 1))
        stack.gateway(0).kill()
        killed_at = time.monotonic()
        await asyncio.gather(*tasks)
        for reading in readings:
            reading.must_be_whole()
            stored_log(stack, reading.session_id)
    # From the reconnection that succeeded to its first token that is new.
    waits = [
        connection.new_token_at - connection.asked_at
        for reading in readings
        for connection in reading.connections
        if connection.asked_at > killed_at and connection.new_token_at is not None
    ]
    figures = f"p50 {statistics.median(waits):.3f} s, p99 {quantile(waits, 0.99):.3f} s"
    record_property("reconnect_to_token", figures)
    print(f"\nfrom reconnecting to the next new token, {len(waits)} readers: {figures}")
    assert len(waits) >= STREAMS / 3, "too few were cut to say anything"
    assert statistics.median(waits) < 3
    assert epochs(stack, readings) == [2] * STREAMS
    assert sum(engine.stats()["wrong_prefixes"] for engine in engines) == 0


async def test_a_frozen_owner_is_replaced_and_changes_nothing_when_it_wakes(stack_of_two):
    stack, _ = stack_of_two(pace=12)
    frozen = stack.gateway(0)
    async with Client(urls(stack), stack.api_key()) as client:
        readings, tasks = await begin_reading(client, 10, 120, others=(1,))
        frozen.stop()
        try:
            await until(lambda: epochs(stack, readings) == [2] * 10, 30)
        finally:
            frozen.cont()
        await asyncio.gather(*tasks)
        for reading in readings:
            reading.must_be_whole()
            assert stored_log(stack, reading.session_id).epochs == {1, 2}
            assert events(stack, reading, "completed") == 1
        assert epochs(stack, readings) == [2] * 10
        assert states(stack, readings) == {"completed": 10}
        # The zombie serves again, as a process among others.
        late = await client.create(question("late", 5), gateway=0)
        (await client.read_on(late, gateways=[0])).must_be_whole()


async def test_when_all_lose_their_locks_nobody_is_taken_for_dead(stack_of_two, start_proxy):
    """As by a restart of the database: whoever has its lock again first waits for the others."""
    stack, _ = stack_of_two(pace=12, gateways=1)
    proxy = await start_proxy(urlsplit(stack.database_url).port)
    journal = proxy.url_of(stack.database_url)
    await asyncio.to_thread(stack.start_gateway, DATABASE_DIRECT_URL=journal)
    async with Client(urls(stack), stack.api_key()) as client:
        readings, tasks = await begin_reading(client, 10, 60, gateway=1, others=(0,))
        stack.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'unbroken journal %'"
        )
        await proxy.cut()
        await asyncio.sleep(0.4)  # others look at the owner's lock every 0.1 s
        proxy.mend()
        await asyncio.gather(*tasks)
        for reading in readings:
            reading.must_be_whole()
        assert epochs(stack, readings) == [1] * 10


async def test_an_owner_cut_from_the_database_is_replaced(stack_of_two, start_proxy):
    """It cannot write, so it shows nothing; its readers hear heartbeats, and follow the new owner."""
    stack, _ = stack_of_two(pace=12, gateways=1)
    proxy = await start_proxy(urlsplit(stack.database_url).port)
    cut_off = await asyncio.to_thread(
        stack.start_gateway,
        DATABASE_URL=proxy.url_of(stack.database_url),
        DATABASE_DIRECT_URL=proxy.url_of(stack.database_url),
    )
    async with Client(urls(stack), stack.api_key()) as client:
        readings, tasks = await begin_reading(client, 10, 100, gateway=1, others=(0,))
        stays = await client.create(question("stays", 100), gateway=1)
        staying = asyncio.create_task(client.read_on(stays, gateways=[1], seconds=60))
        await until(lambda: stays.seq >= 3)
        await proxy.cut()
        await until(lambda: min(epochs(stack, readings)) == 2, 15)
        await asyncio.gather(*tasks)
        proxy.mend()
        await staying
        for reading in [*readings, stays]:
            reading.must_be_whole()
            assert events(stack, reading, "completed") == 1
    assert cut_off.process.poll() is None


async def test_an_owner_that_dies_with_a_whole_answer_not_yet_closed(stack_of_two):
    """Its last token is stored, its terminal record is not: no engine may be asked for more."""
    stack, engines = stack_of_two()
    for engine in engines:
        engine.set_fault(kind="late_usage", arg=3600, times=-1)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("whole", 30), gateway=1)
        task = asyncio.create_task(client.read_on(reading, gateways=(1, 0), seconds=30))
        await until(lambda: reading.seq == reading.answer.completion_tokens)
        stack.gateway(1).kill()
        assert reading.end is None, "the terminal record was faster than the test"
        await task
        reading.must_be_whole()
        assert epochs(stack, [reading]) == [2]
        stored_log(stack, reading.session_id)
    assert sum(engine.stats()["started"] for engine in engines) == 1


# ``cancel`` has a grace only for the reader that has yet to come.
@pytest.mark.parametrize(("policy", "grace"), [("suspend", "0"), ("cancel", "5")])
async def test_a_whole_answer_is_completed_whatever_is_asked_before_it_is_closed(
    stack_of_two, policy, grace
):
    stack, engines = stack_of_two(gateways=1, env={"GRACE_SECONDS": grace})
    for engine in engines:
        engine.set_fault(kind="late_usage", arg=3600, times=-1)
    async with Client(urls(stack), stack.api_key(on_disconnect=policy)) as client:
        stopped = await client.create(question("stopped", 30))
        task = asyncio.create_task(client.read_on(stopped))
        await until(lambda: stopped.seq == stopped.answer.completion_tokens)
        await client.call("POST", f"/v1/sessions/{stopped.session_id}/stop")
        await task
        stopped.must_be_whole()
        left = await client.create(question("left", 30))
        await client.read(left, leave_at=left.answer.completion_tokens)
        await until(lambda: states(stack, [left]) == {"completed": 1})


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("UPDATE streaming_streamsession SET request = '{' WHERE id = %s", "request_unreadable"),
        (
            "UPDATE streaming_tokencheckpoint SET digest = 'x' WHERE session_id = %s",
            "log_corrupt",
        ),
    ],
)
async def test_what_cannot_be_gone_on_with_ends_once_and_says_why(stack_of_two, damage, code):
    stack, _ = stack_of_two(pace=30, gateways=1, env={"GRACE_SECONDS": "0"})
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("damaged", 600))
        await client.read(reading, leave_at=5)
        await until(lambda: states(stack, [reading]) == {"suspended": 1})
        stack.sql(damage, reading.session_id)
        await client.read_on(reading)
        assert [(name, end["error"]["code"]) for name, end in reading.ends] == [("error", code)]
        assert states(stack, [reading]) == {"failed": 1}


async def test_three_processes_race_for_one_takeover(stack_of_two):
    """Readers of each session on all three survivors: one epoch step, one answer."""
    stack, engines = stack_of_two(pace=12, gateways=4)
    async with Client(urls(stack), stack.api_key()) as client:
        readings = [await client.create(question(f"race {n}", 80)) for n in range(8)]
        shadows = [
            [Reading(reading.session_id, reading.messages) for _ in range(3)]
            for reading in readings
        ]
        tasks = [
            asyncio.create_task(client.read_on(shadow, gateways=[gateway]))
            for trio in shadows
            for gateway, shadow in enumerate(trio, 1)
        ]
        await until(lambda: all(shadow.seq >= 3 for trio in shadows for shadow in trio), 30)
        stack.gateway(0).kill()
        await asyncio.gather(*tasks)
        for trio in shadows:
            for shadow in trio:
                shadow.must_be_whole()
            assert events(stack, trio[0], "taken_over") == 1
            assert events(stack, trio[0], "completed") == 1
    assert epochs(stack, readings) == [2] * 8
    assert sum(engine.stats()["wrong_prefixes"] for engine in engines) == 0


@pytest.mark.parametrize("gateways", [(0, 0), (0, 1), (1, 1)])
async def test_two_readers_of_one_session(stack_of_two, gateways):
    stack, _ = stack_of_two(pace=40)
    async with Client(urls(stack), stack.api_key()) as client:
        one = await client.create(question("two tabs", 60))
        other = Reading(one.session_id, one.messages)
        await asyncio.gather(
            *(
                client.read_on(reading, gateways=[gateway])
                for reading, gateway in zip([one, other], gateways, strict=True)
            )
        )
        one.must_be_whole()
        other.must_be_whole()
        assert len(one.connections) == len(other.connections) == 1


@pytest.mark.parametrize(
    ("policy", "end"), [("suspend", "suspended"), ("finish", "completed"), ("cancel", "cancelled")]
)
async def test_sessions_of_a_dead_owner_that_nobody_reads(stack_of_two, policy, end):
    stack, _ = stack_of_two(pace=15, env={"GRACE_SECONDS": "1"})
    async with Client(urls(stack), stack.api_key(on_disconnect=policy)) as client:
        readings = [await client.create(question(f"alone {n}", 60)) for n in range(5)]
        # Held, so that no grace ends before the owner does.
        tasks = [asyncio.create_task(client.read(reading)) for reading in readings]
        await until(lambda: all(reading.seq >= 3 for reading in readings))
        stack.gateway(0).kill()
        await asyncio.gather(*tasks)
        await until(lambda: states(stack, readings) == {end: 5}, 15)
        cause = stack.sql(
            "SELECT DISTINCT cause FROM streaming_streamsession WHERE owner_id IS NOT NULL"
        )
        if policy != "finish":
            assert cause == [("gateway_crash",)]
        if policy == "suspend":
            for reading in readings:
                (await client.read_on(reading, gateways=[1])).must_be_whole()
        for reading in readings:
            stored_log(stack, reading.session_id)


async def test_a_reader_that_comes_back_within_its_grace_finds_its_session_going_on(stack_of_two):
    """The process died, the reader did not leave: not even ``cancel`` ends its session."""
    stack, _ = stack_of_two(pace=15, env={"GRACE_SECONDS": "6"})
    async with Client(urls(stack), stack.api_key(on_disconnect="cancel")) as client:
        reading = await client.create(question("patience", 60))
        await client.read(reading, leave_at=0)
        task = asyncio.create_task(client.read(reading))
        await until(lambda: reading.seq >= 3)
        stack.gateway(0).kill()
        await task
        await asyncio.sleep(3)
        (await client.read_on(reading, gateways=[1])).must_be_whole()
