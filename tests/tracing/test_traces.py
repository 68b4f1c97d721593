"""A trace goes from the reader to each engine, over failovers and from process to process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator

import pytest
import websockets

from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, urls
from tests.resume.events import question as answer_of
from tests.stack import Stack
from tests.tracing.collector import Collector, SpanSeen

WORDS = "my secret question"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def traced(stack_of_two, collector: Collector) -> tuple[Stack, list[SimulatorProcess]]:
    return stack_of_two(
        pace=60,
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"},
    )


def new_context() -> tuple[str, str]:
    """A trace's id, and the ``traceparent`` of somebody who has begun it."""
    trace_id = secrets.token_hex(16)
    return trace_id, f"00-{trace_id}-{secrets.token_hex(8)}-01"


async def spans_of(
    collector: Collector, trace_id: str, whole: Callable[[list[SpanSeen]], bool]
) -> tuple[list[SpanSeen], list[SpanSeen]]:
    """The spans of readers and of attempts, the latter in their order, when ``whole`` says so."""
    await until(lambda: whole(collector.spans(trace_id)), 30)
    spans = collector.spans(trace_id)
    readers = [span for span in spans if span.kind == "SERVER"]
    attempts = [span for span in spans if span.kind == "CLIENT"]
    return readers, sorted(attempts, key=lambda span: span.attributes["unbroken.attempt"])


def asked_in(engine: SimulatorProcess, trace_id: str) -> list[str]:
    """The spans from which an engine was asked, in a trace."""
    told = [record["headers"].get("traceparent", "") for record in engine.stats()["requests"]]
    return [context.split("-")[2] for context in told if trace_id in context]


async def test_a_failover_is_one_trace_with_a_span_for_each_attempt(traced, collector):
    stack, engines = traced
    trace_id, context = new_context()
    async with Readers(stack.gateway().url, stack.api_key()) as readers:
        task = asyncio.create_task(
            readers.ask(question(WORDS, 120), headers={"traceparent": context})
        )
        asked: list[str] = []

        def is_asked() -> bool:
            asked[:] = [node for node in "ab" if asked_in(engines["ab".index(node)], trace_id)]
            return bool(asked)

        await until(is_asked, 20)
        victim = engines["ab".index(asked[0])]
        first_asked = asked_in(victim, trace_id)
        victim.kill()
        seen = await task
    assert seen.is_whole, seen.trouble
    other = engines[1 - engines.index(victim)]

    (reader,), (first, second) = await spans_of(collector, trace_id, lambda spans: len(spans) == 3)
    assert reader.name == "POST /v1/chat/completions"
    assert reader.service == "unbroken-gateway"
    assert reader.parent_id == context.split("-")[2]
    assert reader.attributes["unbroken.session_id"] == seen.session_id
    assert reader.attributes["http.response.status_code"] == 200
    assert reader.attributes["unbroken.end"] == "whole"
    assert {first.parent_id, second.parent_id} == {reader.span_id}
    assert first.failed
    assert not second.failed
    assert second.attributes["unbroken.kind"] == "failover"
    assert second.attributes["unbroken.seam_grade"] == "exact"
    assert second.attributes["unbroken.end_reason"] == "finished"
    assert second.events == ["first token"]
    # Each engine goes on from the span of its own attempt.
    assert first_asked == [first.span_id]
    assert asked_in(other, trace_id) == [second.span_id]
    assert b"secret" not in collector.bytes
    assert stack.api_key().encode() not in collector.bytes


async def test_a_session_taken_over_goes_on_in_its_trace(traced, collector):
    stack, _ = traced
    trace_id, context = new_context()
    async with Client(urls(stack), stack.api_key()) as client:
        client.http.headers["traceparent"] = context
        reading = await client.create(answer_of(WORDS, 200), gateway=0)
        del client.http.headers["traceparent"]
        task = asyncio.create_task(client.read_on(reading, gateways=(0, 1), seconds=60))
        await until(lambda: reading.seq >= 3, 30)
        stack.gateway(0).kill()
        await task
    (_, attempts) = await spans_of(
        collector,
        trace_id,
        lambda spans: any(s.attributes.get("unbroken.end_reason") == "finished" for s in spans),
    )
    # What the killed process had not sent is lost with it; its successor's attempt is there.
    assert attempts[-1].attributes["unbroken.kind"] == "resumption"
    assert attempts[-1].attributes["unbroken.attempt"] == 2


async def test_a_socket_is_one_span_and_probes_are_none(traced, collector):
    stack, _ = traced
    trace_id, context = new_context()
    async with websockets.connect(
        stack.gateway().websocket_url + "/ws/chat/",
        additional_headers={"authorization": f"Bearer {stack.api_key()}", "traceparent": context},
    ) as socket:
        await socket.send(
            '{"type": "start", "request": {"model": "sim-model", "messages": '
            '[{"role": "user", "content": "Hello [[tokens=5]]"}]}}'
        )
        async for message in socket:
            if '"done"' in message:
                break
    async with Readers(stack.gateway().url, stack.api_key()) as readers:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with readers.client.get(path):
                pass
    (reader,), (attempt,) = await spans_of(collector, trace_id, lambda spans: len(spans) == 2)
    assert reader.name == "WebSocket /ws/chat/"
    assert attempt.parent_id == reader.span_id
    assert {span.name for span in collector.all_spans()} == {reader.name, attempt.name}


async def test_a_collector_that_is_away_costs_no_answer(stack_of_two):
    stack, _ = stack_of_two(gateways=1, env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    async with Readers(stack.gateway().url, stack.api_key()) as readers:
        seen = await readers.ask(question("Hello", 30))
    assert seen.is_whole, seen.trouble


async def test_nothing_is_traced_or_imported_by_default(stack_of_two):
    stack, engines = stack_of_two(gateways=1)
    _, context = new_context()
    async with Readers(stack.gateway().url, stack.api_key()) as readers:
        seen = await readers.ask(question("Hello", 30), headers={"traceparent": context})
    assert seen.is_whole, seen.trouble
    # A client's own header is not passed on.
    headers = [record["headers"] for engine in engines for record in engine.stats()["requests"]]
    assert headers
    assert all("traceparent" not in one for one in headers)
    maps = open(f"/proc/{stack.gateway().pid}/maps").read()  # noqa: SIM115, ASYNC230
    assert "opentelemetry" not in maps
    assert "google/_upb" not in maps
    assert stack.sql("SELECT count(*) FROM streaming_sessionevent WHERE data ? 'traceparent'") == [
        (0,)
    ]
