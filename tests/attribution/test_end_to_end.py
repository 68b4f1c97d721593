"""Through a gateway: what becomes of an engine is what its attempts are said to have failed of."""

from __future__ import annotations

import asyncio

import pytest

from streaming.client import ServerError, UnbrokenClient
from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess

TOKENS = 40


async def read(client: UnbrokenClient, text: str, tokens: int = TOKENS) -> None:
    """One whole answer."""
    messages = question(text, tokens)
    reader = await client.start({"model": "sim-model", "messages": messages, "temperature": 0})
    got = "".join([piece.text async for piece in reader])
    assert got == expected_answer(messages).text


def attempts_that_failed(stack) -> list[tuple[str, str, str]]:
    """Node, cause, and the words."""
    return stack.sql(
        "SELECT node_name, cause, evidence->>'because' FROM streaming_attempt"
        " WHERE end_reason NOT IN ('', 'finished', 'overtaken', 'cancelled') ORDER BY node_name"
    )


@pytest.fixture
def two(start_stack):
    with SimulatorProcess("vllm", pace=30) as a, SimulatorProcess("vllm", pace=30) as b:
        stack = start_stack(
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"HEALTH_INTERVAL": "0.3", "ALLOW_REHEARSAL": "1"},
        )
        yield stack, a, b


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"kind": "reset", "at_token": 9}, "network_reset"),  # it lives on
        ({"kind": "truncated", "at_token": 9}, "network_reset"),
        ({"kind": "error_done", "at_token": 9}, "engine_crash"),
        ({"kind": "malformed", "at_token": 9}, "engine_crash"),
        ({"kind": "status", "arg": 429}, "rate_limit"),
        ({"kind": "status", "arg": 503}, "engine_overload"),
        ({"kind": "status", "arg": 401}, "unknown"),
    ],
)
async def test_faults_of_a_node_that_lives(two, fault, cause):
    stack, a, b = two
    for engine in (a, b):
        engine.set_fault(**fault)
    async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
        await read(client, "one node or the other fails")
    await until(lambda: {row[1] for row in attempts_that_failed(stack)} == {cause}, 15)
    assert all(because for _, _, because in attempts_that_failed(stack))


async def test_an_engine_that_is_killed_under_many_streams(two):
    stack, a, _ = two
    async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
        reading = [asyncio.create_task(read(client, f"killed {n}", 90)) for n in range(10)]
        running = (
            "SELECT count(*) FROM streaming_attempt WHERE node_name = 'a' AND ended_at IS NULL"
        )
        await until(lambda: stack.sql(running)[0][0] >= 3)
        a.kill()
        await asyncio.gather(*reading)
    await until(lambda: all(row[1] for row in attempts_that_failed(stack)), 15)
    failed = attempts_that_failed(stack)
    assert len(failed) >= 3
    assert {row[:2] for row in failed} == {("a", "engine_crash")}


async def test_an_engine_that_is_stopped_under_many_streams(two):
    """Hedges are faster than any verdict on it: the attempts they overtook are explained too."""
    stack, a, _ = two
    on_a = "FROM streaming_attempt WHERE node_name = 'a'"
    async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
        reading = [asyncio.create_task(read(client, f"stopped {n}", 150)) for n in range(10)]
        await until(lambda: stack.sql(f"SELECT count(*) {on_a}")[0][0] >= 3)
        await asyncio.sleep(1)  # some of their tokens have come
        a.stop()
        try:
            await asyncio.gather(*reading)
            await until(
                lambda: stack.sql(f"SELECT DISTINCT cause {on_a}") == [("engine_frozen",)], 15
            )
        finally:
            a.cont()


async def test_sessions_that_end_in_another_way_than_whole(two):
    stack, a, b = two
    end = "SELECT state, cause, evidence->>'error' FROM streaming_streamsession WHERE id = %s"
    async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
        body = {"model": "sim-model", "messages": question("stopped", 300), "temperature": 0}
        reader = await client.start(body)
        await reader.stop()
        await until(lambda: stack.sql(end, reader.id) == [("stopped", "client_stop", None)])
        for engine in (a, b):
            engine.set_fault(kind="reset", at_token=9, times=-1)
        failing = await client.start({**body, "messages": question("fails", 40)})
        with pytest.raises(ServerError):
            [piece async for piece in failing]
        ended = ("failed", "network_reset", "failover_exhausted")
        await until(lambda: stack.sql(end, failing.id) == [ended])
        for _, cause, _ in attempts_that_failed(stack):
            assert cause in ("network_reset", "")


async def test_a_rehearsed_failure_is_no_interruption(two):
    stack, _, _ = two
    async with UnbrokenClient(stack.gateway().url, stack.api_key(is_test=True)) as client:
        client.http.headers["x-unbroken-rehearse"] = "kill@9"
        await read(client, "rehearsed")
    await until(lambda: len(attempts_that_failed(stack)) == 1)
    await asyncio.sleep(1.5)
    ((_, cause, because),) = attempts_that_failed(stack)
    assert (cause, because) == ("", None)


async def test_an_answer_that_takes_too_long_ends_with_a_warning_before(start_stack):
    with SimulatorProcess("vllm", pace=10) as engine:
        stack = start_stack(
            engine_nodes=[f"a=vllm+{engine.url}"], env={"MAX_ANSWER_SECONDS": "1.5"}
        )
        async with UnbrokenClient(stack.gateway().url, stack.api_key()) as client:
            with pytest.raises(ServerError) as ended:
                await read(client, "long", 200)
        assert ended.value.code == "answer_timeout"
        stored = stack.sql("SELECT state, error_code, cause FROM streaming_streamsession")
        assert stored == [("failed", "answer_timeout", "timeout")]
        kinds = [row[0] for row in stack.sql("SELECT kind FROM streaming_sessionevent ORDER BY id")]
        assert kinds.index("answer_long") < kinds.index("failed")
