"""An answer that breaks off by an error that is not its request's: it goes on with who comes back."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from tests.durability.reader import Readers, until
from tests.durability.stored import stored_log
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import scraped
from tests.resume.events import Client, Reading, question, urls
from tests.resume.test_long_poll import poll
from tests.stack import Stack
from tests.websocket.talk import answer_to, chat, talk

QUICK = {"NODE_WAIT_SECONDS": "1"}


def session(stack: Stack, session_id: Any) -> tuple[str, str]:
    """State and error code."""
    return stack.sql(
        "SELECT state, error_code FROM streaming_streamsession WHERE id = %s", session_id
    )[0]


def taken_over(stack: Stack, session_id: Any) -> list[str]:
    """Why, each time."""
    rows = stack.sql(
        "SELECT data ->> 'reason' FROM streaming_sessionevent WHERE session_id = %s"
        " AND kind = 'taken_over' ORDER BY id",
        session_id,
    )
    return [reason for (reason,) in rows]


def healthy(stack: Stack) -> int:
    return stack.sql("SELECT count(*) FROM streaming_inferencenode WHERE health = 'up'")[0][0]


def is_settled(stack: Stack) -> bool:
    """Whether everything is that was announced."""
    waiting = "SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL"
    return stack.sql(waiting) == [(0,)]


def settlements(stack: Stack, session_id: Any) -> dict[str, int]:
    """Tokens that it was charged for, by why it was settled then."""
    rows = stack.sql(
        "SELECT kind, sum(output_tokens)::int FROM billing_settlement WHERE usage_id = %s GROUP BY 1",
        session_id,
    )
    return dict(rows)


async def kill_all(stack: Stack, engines: list[SimulatorProcess]) -> None:
    for engine in engines:
        engine.kill()
    await until(lambda: healthy(stack) == 0)


async def restart_all(stack: Stack, engines: list[SimulatorProcess]) -> None:
    for engine in engines:
        engine.restart()
    await until(lambda: healthy(stack) == len(engines), 20)


async def test_readers_here_and_elsewhere_are_told_and_come_back(stack_of_two) -> None:
    stack, engines = stack_of_two(pace=30, env=QUICK)
    async with Client(urls(stack), stack.api_key()) as client:
        here = await client.create(question("all nodes die", 90))
        there = Reading(here.session_id, here.messages)
        readers = [
            asyncio.create_task(client.read(here)),
            asyncio.create_task(client.read(there, gateway=1)),
        ]
        await until(lambda: min(here.seq, there.seq) >= 9)
        await kill_all(stack, engines)
        await asyncio.gather(*readers)
        for reading in (here, there):
            assert [(e["code"], e["resumable"]) for e in reading.errors] == [
                ("no_healthy_node", True)
            ]
            assert not reading.ends
        assert here.errors == there.errors, "the same error wherever it is read"
        assert here.cursor == there.cursor == len(stored_log(stack, here.session_id).ids)
        assert session(stack, here.session_id) == ("suspended", "no_healthy_node")
        _, told = await client.call("GET", f"/v1/sessions/{here.session_id}")
        assert (told["state"], told["error_code"]) == ("suspended", "no_healthy_node")
        until_then = told["resume_until"]

        # In vain: it is told again, and has no more time by that. Nobody else tries meanwhile.
        await client.read(here, gateway=1)
        assert len(here.errors) == 2
        assert taken_over(stack, here.session_id) == ["resumed"]
        _, told = await client.call("GET", f"/v1/sessions/{here.session_id}")
        assert (told["state"], told["resume_until"]) == ("suspended", until_then)

        await restart_all(stack, engines)
        await asyncio.gather(
            client.read_on(here, gateways=[1]), client.read_on(there, gateways=[0])
        )
        for reading in (here, there):
            reading.must_be_whole("no_healthy_node")
        assert session(stack, here.session_id) == ("completed", "")
        assert sum(engine.stats()["wrong_prefixes"] for engine in engines) == 0
        await until(lambda: is_settled(stack))
        charged = settlements(stack, here.session_id)
        assert sum(charged.values()) == here.answer.completion_tokens
        # What is settled while it is suspended depends on when the worker comes by.
        assert {"ended"} <= set(charged) <= {"suspended", "ended"}


async def test_who_keeps_a_connection_open_is_not_in_the_way_of_who_returns(stack_of_two) -> None:
    """Its own error has been told; the session goes on for the other, and that for itself."""
    stack, engines = stack_of_two(pace=30, env=QUICK)
    async with talk(f"{stack.gateway().websocket_url}/ws/chat/", stack.api_key()) as one:
        request = chat("over a socket", 90)
        followed = await one.begin(request)
        await one.read_until(lambda: followed.cursor >= 9)
        await kill_all(stack, engines)
        await one.read_until(lambda: "error" in followed.kinds)
        told = one.log[-1]
        assert (told["error"]["code"], told["error"]["resumable"]) == ("no_healthy_node", True)
        assert "seq" not in told
        before = followed.text
        await restart_all(stack, engines)
        again = await one.begin_again(followed.opening["session"], followed.cursor)
        if again is followed:
            await one.read_until(lambda: one.sessions[told["session"]] is not followed)
            again = one.sessions[told["session"]]
        await one.read_until(lambda: again.end is not None)
        assert before + again.text == answer_to(request)
        assert again.end is not None
        assert again.end["state"] == "completed"


async def test_the_same_key_continues_it(stack_of_two) -> None:
    """Streamed or not, and also before its first token."""
    stack, engines = stack_of_two(pace=30, env=QUICK)
    key = stack.api_key()
    headers = {"idempotency-key": uuid4().hex}
    messages = question("not streamed", 60)
    body = {"model": "sim-model", "messages": messages, "temperature": 0}
    async with Client(urls(stack), key) as client, Readers(stack.gateway().url, key) as readers:
        asking = asyncio.create_task(
            client.call("POST", "/v1/chat/completions", body, headers=headers)
        )
        streamed = {"idempotency-key": uuid4().hex}
        seen = asyncio.create_task(readers.ask(question("streamed", 60), headers=streamed))
        durable = "SELECT coalesce(min(durable_seq), 0) FROM session_fence"
        await until(lambda: stack.sql(durable)[0][0] >= 5)
        await kill_all(stack, engines)
        status, answer = await asking
        assert (status, answer["error"]["code"]) == (503, "no_healthy_node")
        assert answer["error"]["resumable"]
        cut = await seen
        assert cut.error is not None
        assert cut.error["resumable"]
        early = {"idempotency-key": uuid4().hex}
        none_yet = question("not begun", 20)
        unbegun = await readers.ask(none_yet, headers=early)
        assert unbegun.error is not None

        await restart_all(stack, engines)
        status, answer = await client.call(
            "POST", "/v1/chat/completions", body, gateway=1, headers=headers
        )
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"] == expected_answer(messages).text
        whole = await readers.ask(question("streamed", 60), headers=streamed)
        assert whole.is_whole, whole.trouble
        assert whole.session_id == cut.session_id
        begun = await readers.ask(none_yet, headers=early)
        assert begun.is_whole, begun.trouble
    assert stack.sql("SELECT count(*) FROM streaming_streamsession") == [(3,)]


async def test_poll_by_poll(stack_of_two) -> None:
    stack, engines = stack_of_two(pace=30, gateways=1, env=QUICK)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("polled", 60))
        while reading.seq < 5:
            await poll(client, reading, wait=5)
        await kill_all(stack, engines)
        async with asyncio.timeout(20):
            while (await poll(client, reading, wait=5))[0] == 200:
                pass
        assert session(stack, reading.session_id) == ("suspended", "no_healthy_node")
        await restart_all(stack, engines)
        async with asyncio.timeout(20):
            while not reading.ends:
                await poll(client, reading, wait=5)
        reading.controls.clear()
        reading.must_be_whole()


async def test_a_request_that_no_engine_survives_fails_for_good(stack_of_two) -> None:
    stack, engines = stack_of_two(gateways=1, env={**QUICK, "MAX_ATTEMPTS": "3"})
    for engine in engines:
        engine.set_fault(kind="truncated", after_tokens=2, times=-1)
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("poison", 90))
        await client.read_on(reading)
    # Operators see each time that it broke off, and its end.
    told = "unbroken_session_ends_total"
    await scraped(
        stack.gateway().url,
        lambda s: (
            s.value(told, state="interrupted") == len(reading.errors)
            and s.value(told, state="failed") == 1
            and not s.value(told, state="suspended")
        ),
    )
    assert {error["code"] for error in reading.errors} == {"failover_exhausted"}
    ((name, told),) = reading.ends
    assert (name, told["error"]["code"]) == ("error", "failover_exhausted")
    assert told["error"]["resumable"] is False
    assert session(stack, reading.session_id) == ("failed", "failover_exhausted")
    assert stack.sql("SELECT failovers FROM streaming_streamsession") == [(6,)]
    assert sum(engine.stats()["started"] for engine in engines) == 6


async def test_nobody_comes_back_in_time(stack_of_two) -> None:
    """Its end has its error still: for who comes later, for the admin, for webhooks."""
    stack, engines = stack_of_two(
        pace=30, gateways=1, env={"NODE_WAIT_SECONDS": "0.5", "RESUME_WINDOW": "1"}
    )
    key = stack.api_key()
    messages = question("too late", 60)
    async with Readers(stack.gateway().url, key) as readers, Client(urls(stack), key) as client:
        headers = {"idempotency-key": uuid4().hex}
        asking = asyncio.create_task(readers.ask(messages, headers=headers))
        await until(lambda: stack.sql("SELECT durable_seq >= 5 FROM session_fence") == [(True,)])
        await kill_all(stack, engines)
        cut = await asking
        found = cut.session_id
        await until(lambda: session(stack, found) == ("abandoned", "no_healthy_node"))
        late = Reading(found, messages)
        await client.read(late)
        ((_, told),) = late.ends
        assert (told["error"]["code"], told["error"]["resumable"]) == ("no_healthy_node", False)
        assert late.text == cut.text
        again = await readers.ask(messages, headers=headers)
        assert again.error is not None
        assert (again.error["code"], again.error["resumable"]) == ("no_healthy_node", False)
        await until(lambda: is_settled(stack))
    assert sum(settlements(stack, found).values()) == len(stored_log(stack, found).ids)
    ((cause,),) = stack.sql("SELECT cause FROM streaming_streamsession")
    assert cause == "engine_crash"


async def test_what_is_to_be_finished_is_tried_again_without_a_reader(stack_of_two) -> None:
    stack, engines = stack_of_two(pace=30, gateways=1, env=QUICK)
    key = stack.api_key(on_disconnect="finish")
    async with Readers(stack.gateway().url, key) as readers:
        asking = asyncio.create_task(readers.ask(question("finish it", 60)))
        await until(lambda: stack.sql("SELECT durable_seq >= 5 FROM session_fence") == [(True,)])
        await kill_all(stack, engines)
        cut = await asking
    await restart_all(stack, engines)
    await until(lambda: session(stack, cut.session_id) == ("completed", ""), 30)
    assert stored_log(stack, cut.session_id).text == cut.answer.text


async def test_the_log_cannot_be_written_for_too_long(start_stack) -> None:
    with SimulatorProcess("vllm", pace=1500) as engine:
        stack = start_stack(
            private_postgres=True,
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"JOURNAL_DOWN_SECONDS": "1"},
        )
        async with Client(urls(stack), stack.api_key()) as client:
            reading = await client.create(question("unwritten", 6000, "plain"))
            reader = asyncio.create_task(client.read(reading))
            await until(lambda: reading.seq >= 100)
            await asyncio.to_thread(stack.stop_postgres)
            await reader
            assert reading.errors[-1]["code"] == "journal_unavailable"
            assert reading.errors[-1]["resumable"]
            await asyncio.sleep(3)  # its engine is read no further, and its runner gives up
            stack.start_postgres()
            await until(
                lambda: session(stack, reading.session_id) == ("suspended", "journal_unavailable")
            )
            await client.read_on(reading)
            reading.must_be_whole("journal_unavailable")
