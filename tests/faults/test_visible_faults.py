"""What the engine says is told apart: the client's fault, the node's, and the end of all patience."""

from __future__ import annotations

import pytest

from streaming.engines.http import error_message
from tests.durability.reader import Readers, until
from tests.durability.stored import stored_log
from tests.faults.pair import Pair, assert_all_whole


async def test_continuations_are_exact_and_told(pair: Pair) -> None:
    """Every seam is recorded with its grade, and no engine was asked for a token twice."""
    pair.bad.set_fault(kind="reset", at_token=11, times=-1)
    async with pair.readers() as readers:
        seen = await readers.ask_many(6, "exact", 30, "plain")
    assert_all_whole(pair.stack, seen)
    rows = [row for row in pair.attempts(seen) if row.number == 2]
    assert rows
    assert {(row.grade, row.first_seq) for row in rows} == {("exact", 12)}


async def test_an_in_band_4xx_is_the_clients(pair: Pair) -> None:
    for node in pair.nodes:
        node.set_fault(kind="error_4xx", at_token=5, times=-1)
    async with pair.readers() as readers:
        seen = await readers.ask_many(4, "wrong request", 30, "plain")
    for reader in seen:
        assert reader.error is not None
        assert reader.error["type"] == "invalid_request_error"
        assert (reader.error["code"], reader.error["resumable"]) == ("engine_rejected", False)
        assert not reader.done
        assert pair.session(reader) == ("failed", "engine_rejected", 0)
        assert stored_log(pair.stack, reader.session_id).text == reader.text
    assert pair.healthy == 2


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refusal_before_the_stream_is_the_clients(pair: Pair, status: int) -> None:
    for node in pair.nodes:
        node.set_fault(kind="status", arg=status, times=-1)
    async with pair.readers() as readers:
        (seen,) = await readers.ask_many(1, "refused", 30)
    assert (seen.status, seen.error and seen.error["code"]) == (400, "engine_rejected")
    assert pair.session(seen) == ("failed", "engine_rejected", 0)
    assert len(pair.attempts([seen])) == 1
    assert pair.healthy == 2


async def test_every_attempt_fails_without_progress(pair: Pair) -> None:
    for node in pair.nodes:
        node.set_fault(kind="error_done", at_token=0, times=-1)
    async with pair.readers() as readers:
        (seen,) = await readers.ask_many(1, "no progress", 30)
    assert seen.status == 502
    assert seen.error is not None
    assert (seen.error["code"], seen.error["resumable"]) == ("failover_exhausted", True)
    assert pair.session(seen) == ("suspended", "failover_exhausted", 3)


async def test_progress_is_continued_each_time_up_to_max_attempts(pair: Pair) -> None:
    for node in pair.nodes:
        node.set_fault(kind="truncated", after_tokens=5, times=-1)
    async with pair.readers() as readers:
        (whole,) = await readers.ask_many(1, "seven seams", 38, "plain")
        (cut,) = await readers.ask_many(1, "too many seams", 60, "plain")
    assert whole.is_whole, whole.trouble
    assert pair.session(whole) == ("completed", "", 7)
    assert cut.error is not None
    assert (cut.error["code"], cut.error["resumable"]) == ("failover_exhausted", True)
    assert cut.text == "".join(stored_log(pair.stack, cut.session_id).texts)
    assert cut.answer.text.startswith(cut.text)
    assert len(stored_log(pair.stack, cut.session_id).ids) == 8 * 5
    assert pair.session(cut)[:2] == ("suspended", "failover_exhausted")


async def test_all_nodes_down_before_the_answer(pair: Pair) -> None:
    for node in pair.nodes:
        node.set_fault(kind="refuse")
    await until(lambda: pair.healthy == 0)
    # One that gives up before the response has to begin.
    gateway = pair.stack.start_gateway(NODE_WAIT_SECONDS="1")
    try:
        async with Readers(gateway.url, pair.key) as readers:
            (seen,) = await readers.ask_many(1, "nobody there", 30)
    finally:
        gateway.close()
    assert seen.status == 503
    assert seen.error is not None
    assert (seen.error["code"], seen.error["resumable"]) == ("no_healthy_node", True)


@pytest.mark.parametrize(
    "body",
    [b'{"error": {"message": "\\ud800"}}', b'{"error": "\\ud800"}', b"\xed\xa0\x80", b"\xff", b""],
)
def test_an_engines_words_can_always_be_passed_on(body: bytes) -> None:
    """They go into the log and to the client, and nothing there takes a lone surrogate."""
    error_message(body).encode()
