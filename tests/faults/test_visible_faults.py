"""Faults that can be seen at once: no reader notices more than a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streaming.engines.http import error_message
from tests.durability.reader import Readers, Seen
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

STREAMS = 20
IN_STREAM = [
    "sigkill", "reset", "close", "half_event", "half_event_reset", "truncated", "error_done",
    "abort_finish", "malformed",
]  # fmt: skip
FAULTS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, "at_token": 7} for kind in IN_STREAM},
    **{f"first_{kind}": {"kind": kind, "at_token": 0} for kind in ("reset", "truncated")},
    **{f"status_{status}": {"kind": "status", "arg": status} for status in (500, 503, 401, 404)},
    "status_429": {"kind": "status", "arg": 429, "retry_after": 1},
    "refuse": {"kind": "refuse"},
    "wrong_ids_echo": {"kind": "wrong_ids_echo"},
    "wrong_model": {"kind": "wrong_model"},
}
VLLM_ONLY = {"wrong_ids_echo", "wrong_model"}  # llama.cpp echoes neither

BUSY = {"status_503", "status_429"}

Fleet = tuple[Stack, SimulatorProcess, SimulatorProcess, str]


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A gateway with two nodes of one dialect, for all tests of this module."""
    with (
        SimulatorProcess(request.param) as bad,
        SimulatorProcess(request.param) as good,
        Stack(
            engine_nodes=nodes_of(bad=bad, good=good),
            # Each test is to meet its fault: no circuit opens because of the ones before.
            env={"NODE_WAIT_SECONDS": "1", "HEALTH_INTERVAL": "0.2", "CIRCUIT_FAILURES": "100000"},
        ) as stack,
    ):
        yield stack, bad, good, stack.api_key()


@pytest.fixture
def clean_slate(fleet: Fleet) -> None:
    """Both nodes alive, healthy and without faults."""
    stack, bad, good, _ = fleet
    for node in (bad, good):
        if node.is_alive:
            node.clear_faults()
        else:
            node.restart()
    wait_for(lambda: healthy(stack) == 2)


def nodes_of(**nodes: SimulatorProcess) -> list[str]:
    return [f"{name}={node.dialect}+{node.url}" for name, node in nodes.items()]


def healthy(stack: Stack) -> int:
    return stack.sql("SELECT count(*) FROM streaming_inferencenode WHERE health = 'up'")[0][0]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def session_row(stack: Stack, seen: Seen) -> tuple[str, str, int]:
    """state, error code, failovers"""
    return stack.sql(
        "SELECT state, error_code, failovers FROM streaming_streamsession WHERE id = %s",
        seen.session_id,
    )[0]


def assert_all_whole(stack: Stack, seen: list[Seen]) -> None:
    assert [reader.trouble for reader in seen if not reader.is_whole] == []
    for reader in seen:
        log = stored_log(stack, reader.session_id)
        assert log.text == reader.text
        assert log.terminal is not None
        assert log.terminal["state"] == "completed"
        assert log.terminal["finish_reason"] == reader.finish_reason


@pytest.mark.usefixtures("clean_slate")
@pytest.mark.parametrize("name", FAULTS)
async def test_all_answers_are_whole(fleet: Fleet, name: str) -> None:
    stack, bad, good, key = fleet
    if name in VLLM_ONLY and bad.dialect != "vllm":
        pytest.skip("this dialect cannot show it")
    wrong_prefixes = good.stats()["wrong_prefixes"]
    bad.set_fault(times=-1, **FAULTS[name])
    async with Readers(stack.gateway().url, key) as readers:
        seen = await readers.ask_many(STREAMS, name, 40)
    assert_all_whole(stack, seen)
    assert good.stats()["wrong_prefixes"] == wrong_prefixes
    if name in BUSY:
        await asyncio.sleep(1.1)  # until it may be asked again
    if name != "refuse":  # found out by the probes at the latest: maybe nobody was sent there
        ids = [reader.session_id for reader in seen]
        failed = stack.sql(
            "SELECT count(*) FROM streaming_attempt WHERE session_id = ANY(%s::uuid[])"
            " AND node_name = 'bad' AND end_reason <> 'finished'",
            ids,
        )[0][0]
        recovering = stack.sql(
            "SELECT count(*) FROM streaming_sessionevent WHERE session_id = ANY(%s::uuid[])"
            " AND kind = 'recovering'",
            ids,
        )[0][0]
        assert failed + recovering > 0


@pytest.mark.usefixtures("clean_slate")
async def test_continuations_are_exact_and_told(fleet: Fleet) -> None:
    """Every seam is recorded with its grade, and no engine was asked for a token twice."""
    stack, bad, _, key = fleet
    bad.set_fault(kind="reset", at_token=11, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        # A node that has just come back gets few streams at first.
        seen = await readers.ask_many(30, "exact", 30, "plain")
    assert_all_whole(stack, seen)
    rows = stack.sql(
        "SELECT seam_grade, first_seq, last_seq FROM streaming_attempt"
        " WHERE session_id = ANY(%s::uuid[]) AND number = 2",
        [reader.session_id for reader in seen],
    )
    assert rows
    assert {(grade, first) for grade, first, _ in rows} == {("exact", 12)}


@pytest.mark.usefixtures("clean_slate")
async def test_an_in_band_4xx_is_the_clients(fleet: Fleet) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="error_4xx", at_token=5, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        seen = await readers.ask_many(4, "wrong request", 30, "plain")
    for reader in seen:
        assert reader.error is not None
        assert reader.error["type"] == "invalid_request_error"
        assert reader.error["code"] == "engine_rejected"
        assert not reader.done
        assert session_row(stack, reader) == ("failed", "engine_rejected", 0)
        assert stored_log(stack, reader.session_id).text == reader.text
    assert healthy(stack) == 2


@pytest.mark.usefixtures("clean_slate")
@pytest.mark.parametrize("status", [400, 422])
async def test_a_refusal_before_the_stream_is_the_clients(fleet: Fleet, status: int) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="status", arg=status, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        (seen,) = await readers.ask_many(1, "refused", 30)
    assert (seen.status, seen.error and seen.error["code"]) == (400, "engine_rejected")
    assert session_row(stack, seen) == ("failed", "engine_rejected", 0)
    attempts = "SELECT count(*) FROM streaming_attempt WHERE session_id = %s"
    assert stack.sql(attempts, seen.session_id) == [(1,)]
    assert healthy(stack) == 2


@pytest.mark.usefixtures("clean_slate")
async def test_every_attempt_fails_without_progress(fleet: Fleet) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="error_done", at_token=0, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        (seen,) = await readers.ask_many(1, "no progress", 30)
    assert seen.status == 502
    assert seen.error is not None
    assert (seen.error["code"], seen.error["resumable"]) == ("failover_exhausted", True)
    assert session_row(stack, seen) == ("failed", "failover_exhausted", 3)


@pytest.mark.usefixtures("clean_slate")
async def test_progress_is_continued_each_time_up_to_max_attempts(fleet: Fleet) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="truncated", after_tokens=5, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        (whole,) = await readers.ask_many(1, "seven seams", 38, "plain")
        (cut,) = await readers.ask_many(1, "too many seams", 60, "plain")
    assert whole.is_whole, whole.trouble
    assert session_row(stack, whole) == ("completed", "", 7)
    assert cut.error is not None
    assert (cut.error["code"], cut.error["resumable"]) == ("failover_exhausted", True)
    assert cut.text == "".join(stored_log(stack, cut.session_id).texts)
    assert cut.answer.text.startswith(cut.text)
    assert len(stored_log(stack, cut.session_id).ids) == 8 * 5
    assert session_row(stack, cut)[:2] == ("failed", "failover_exhausted")


@pytest.mark.usefixtures("clean_slate")
async def test_all_nodes_down_before_the_answer(fleet: Fleet) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="refuse")
    wait_for(lambda: healthy(stack) == 0)
    async with Readers(stack.gateway().url, key) as readers:
        (seen,) = await readers.ask_many(1, "nobody there", 30)
    assert seen.status == 503
    assert seen.error is not None
    assert (seen.error["code"], seen.error["resumable"]) == ("no_healthy_node", True)


@pytest.mark.usefixtures("clean_slate")
async def test_all_nodes_down_within_the_answer(fleet: Fleet) -> None:
    stack, bad, good, key = fleet
    for node in (bad, good):
        node.set_fault(kind="sigkill", at_token=9, times=-1)
    async with Readers(stack.gateway().url, key) as readers:
        (seen,) = await readers.ask_many(1, "nobody left", 30, "plain")
    assert seen.status == 200
    assert seen.error is not None
    assert (seen.error["code"], seen.error["resumable"]) == ("no_healthy_node", True)
    assert b": ping" in [comment for _, comment in seen.comments]
    assert seen.text == stored_log(stack, seen.session_id).text
    assert seen.answer.text.startswith(seen.text)
    assert len(stored_log(stack, seen.session_id).ids) == 9


@pytest.mark.parametrize(
    "body",
    [b'{"error": {"message": "\\ud800"}}', b'{"error": "\\ud800"}', b"\xed\xa0\x80", b"\xff", b""],
)
def test_an_engines_words_can_always_be_passed_on(body: bytes) -> None:
    """They go into the log and to the client, and nothing there takes a lone surrogate."""
    error_message(body).encode()
