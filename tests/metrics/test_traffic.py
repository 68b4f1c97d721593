"""The numbers right after traffic that is known exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.durability.reader import Readers, question
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import scrape, scraped
from tests.stack import Stack
from tests.websocket.talk import chat, talk

TOKENS = 40
GENERATED = TOKENS + 1
"""With the token that ends the answer."""


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm", pace=200) as engine:
        yield engine


async def test_streams_that_end_whole(start_stack, engine: SimulatorProcess) -> None:
    stack: Stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"])
    url, key = stack.gateway().url, stack.api_key()
    async with Readers(url, key) as readers:
        seen = await readers.ask_many(5, "Count", TOKENS)
    assert all(one.is_whole for one in seen), [one.trouble for one in seen]
    now = await scraped(url, lambda s: s.value("unbroken_tokens_delivered_total") == 5 * GENERATED)
    assert now.value("sse_connections_active") == 0
    assert now.value("sse_chunks_delivered_total") == sum(len(one.tokens) for one in seen)
    assert now.value("unbroken_tokens_generated_total") == 5 * GENERATED
    assert now.value("unbroken_effective_delivery_ratio") == 1
    assert now.total("unbroken_tokens_wasted_total") == 0
    assert now.value("unbroken_session_ends_total", state="completed") == 5
    ended = {"protocol": "openai", "end": "whole"}
    assert now.value("unbroken_connections_ended_total", **ended) == 5
    assert now.total("unbroken_connections_ended_total") == 5
    assert now.value("unbroken_connection_seconds_count", protocol="openai") == 5
    assert now.value("unbroken_journal_lag_seconds") == 0
    assert now.value("unbroken_journal_pending_sessions") == 0
    flushes = now.value("unbroken_journal_flush_seconds_count")
    assert flushes
    assert now.value("unbroken_journal_flush_sessions_count") == flushes
    # Every one of our own requests is a socket, and nothing else is left of those readers.
    assert now.value("unbroken_sockets", state="close_wait") == 0
    assert now.value("unbroken_sockets", state="listen") == 1


async def test_live_sessions_and_a_reader_that_leaves(
    start_stack, engine: SimulatorProcess
) -> None:
    stack: Stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "0.5"})
    url, key = stack.gateway().url, stack.api_key()
    async with Readers(url, key) as readers:
        leaving = asyncio.create_task(readers.ask(question("Leave", 3000), leave_after=60))
        live = await scraped(url, lambda s: s.value("unbroken_sessions", state="streaming") == 1)
        assert live.value("sse_connections_active") == 1
        assert live.value("unbroken_node_streams", node="a") == 1
        seen = await leaving
    session = seen.session_id
    left = await scraped(
        url, lambda s: s.value("unbroken_session_ends_total", state="suspended") == 1
    )
    assert left.value("sse_connections_active") == 0
    assert left.value("unbroken_sessions", state="streaming") == 0
    assert left.value("unbroken_connections_ended_total", protocol="openai", end="early") == 1
    assert left.value("unbroken_abandonment_position_tokens_count") == 1
    assert left.value("unbroken_abandonment_position_tokens_bucket", le="25.0") == 0
    settled = left.value("unbroken_disconnect_to_settlement_seconds_sum")
    assert settled is not None
    assert settled > 0.5, "the grace period belongs to it"
    [(produced, delivered)] = stack.sql(
        "SELECT durable_seq, delivered_seq FROM session_fence WHERE session_id = %s", session
    )
    now = await scraped(
        url, lambda s: s.value("unbroken_tokens_delivered_total") == delivered, seconds=5
    )
    # What was without text yet when the engine was let go is in no log, but was generated.
    wasted = now.total("unbroken_tokens_wasted_total")
    assert now.value("unbroken_tokens_generated_total") == produced + wasted
    assert 0 < delivered <= produced
    # Nobody knows yet whether it will be continued.
    assert now.value("unbroken_tokens_wasted_total", cause="undelivered") == 0


async def test_websockets(start_stack, engine: SimulatorProcess) -> None:
    stack: Stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"])
    url, key = stack.gateway().url, stack.api_key()
    async with talk(stack.gateway().websocket_url + "/ws/chat/", key) as socket:
        assert scrape(url).value("unbroken_websocket_connections") == 1
        await socket.say("start", request=chat("Socket", TOKENS))
        await socket.read_until(lambda: any(f.end for f in socket.sessions.values()))
    ended = {"protocol": "websocket", "end": "whole"}
    now = await scraped(url, lambda s: s.value("unbroken_connections_ended_total", **ended) == 1)
    assert now.value("unbroken_websocket_connections") == 0
    assert now.value("sse_chunks_delivered_total") == 0
    await scraped(url, lambda s: s.value("unbroken_tokens_delivered_total") == GENERATED)


async def test_errors_by_code(start_stack) -> None:
    stack: Stack = start_stack()
    async with Readers(stack.gateway().url, "not a key") as readers:
        assert (await readers.ask(question("Who", 5))).status == 401
    codes = scrape(stack.gateway().url).labels("unbroken_errors_told_total")
    assert codes == [{"code": "invalid_api_key"}]


async def test_it_answers_without_the_database(start_stack, engine: SimulatorProcess) -> None:
    stack: Stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], private_postgres=True)
    url, key = stack.gateway().url, stack.api_key()
    async with Readers(url, key) as readers:
        assert (await readers.ask(question("Before", TOKENS))).is_whole
        before = await scraped(
            url, lambda s: s.value("unbroken_tokens_delivered_total") == GENERATED
        )
        live = asyncio.create_task(readers.ask(question("Meanwhile", 1000)))
        await scraped(url, lambda s: s.value("unbroken_sessions", state="streaming") == 1)
        stack.stop_postgres(kill=True)
        away = await scraped(url, lambda s: (s.value("unbroken_journal_lag_seconds") or 0) > 1)
        assert (away.value("unbroken_journal_pending_sessions") or 0) >= 1
        assert away.families == before.families
        assert away.value("unbroken_node_state", node="a", state="up") == 1
        stack.start_postgres()
        assert (await live).is_whole
    await scraped(url, lambda s: s.value("unbroken_journal_lag_seconds") == 0)


async def test_what_only_the_database_knows(start_stack) -> None:
    stack: Stack = start_stack(gateways=0)
    stack.sql(
        "INSERT INTO streaming_taskrun (name, started_at, succeeded_at, runs, failures, error, result)"
        " VALUES ('defragment_nodes', now(), now() - interval '100 seconds', 12, 3, '', %s::jsonb),"
        " ('reclaim_kv_cache', now() - interval '40 seconds', NULL, 1, 1, 'broken', '{}')",
        '{"under_way": 0, "nodes": {"a": {"index": 0.25, "did": "nothing"}}}',
    )
    stack.sql(
        "INSERT INTO streaming_incident (kind, subject, opened_at, closed_at, data) VALUES"
        " ('engine_silent', 'a', now(), NULL, '{}'), ('engine_silent', 'b', now(), NULL, '{}'),"
        " ('engine_silent', 'c', now(), now(), '{}')"
    )
    gateway = stack.start_gateway()
    now = await scraped(
        gateway.url, lambda s: s.value("unbroken_incidents_open", kind="engine_silent") == 2
    )
    assert now.value("unbroken_task_runs_total", task="defragment_nodes") == 12
    assert now.value("unbroken_task_failures_total", task="defragment_nodes") == 3
    assert 100 <= (now.value("unbroken_task_age_seconds", task="defragment_nodes") or 0) < 160
    assert 40 <= (now.value("unbroken_task_age_seconds", task="reclaim_kv_cache") or 0) < 100
    assert now.value("unbroken_kv_fragmentation_ratio", node="a") == 0.25
    assert now.value("unbroken_sessions_suspended") == 0
