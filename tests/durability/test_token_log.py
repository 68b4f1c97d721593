"""The log in memory: any cursor, bounded memory, and digests that do not depend on the cuts."""

from __future__ import annotations

import asyncio
import dataclasses
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.conf import conf
from streaming.core.chunks import UNKNOWN_ID, Token
from streaming.core.digest import RunningDigest
from streaming.runtime import token_log
from streaming.runtime.log_reader import full_text, slice_from_database
from streaming.runtime.token_log import Batch, LogClosed, SessionLog, terminal_bytes
from tests.durability.conftest import Bench, tokens
from tests.durability.stored import log_from_rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
TOKENS = st.lists(st.builds(Token, st.integers(-1, 2**31 - 1), TEXTS), max_size=6)
# (tokens, attempt advances, flush after)
STEPS = st.lists(st.tuples(TOKENS, st.booleans(), st.booleans()), max_size=12)


def new_log() -> SessionLog:
    return SessionLog(uuid4(), 1, lambda log: None)


def flush(log: SessionLog) -> list[Batch]:
    batches = []
    while log.has_pending:
        batches.append(log.take())
        log.committed(batches[-1], False)
    return batches


def filled(steps, close: bool) -> tuple[SessionLog, list[Token], list[Batch]]:
    log, every, batches, attempt = new_log(), [], [], 1
    for appended, advances, flushes in steps:
        attempt += advances
        log.append(appended, attempt)
        every += appended
        if flushes:
            batches += flush(log)
    if close:
        log.close({"state": "completed"}, attempt)
    return log, every, batches + flush(log)


@given(STEPS, st.booleans(), st.data())
def test_any_cursor_gives_the_rest(steps, close, data) -> None:
    log, every, _ = filled(steps, close)
    end = len(every) + close
    assert (log.last_seq, log.durable_seq, log.unwritten) == (end, end, 0)
    for cursor in range(end + 1):
        piece = log.slice_after(cursor)
        if cursor == end:
            assert piece is None
            continue
        assert piece is not None
        assert piece.last_seq == end
        assert piece.text == "".join(text for _, text in every[cursor:])
        assert piece.terminal == ({"state": "completed"} if close else None)
        upto = data.draw(st.integers(cursor + 1, end))
        part = log.slice_after(cursor, upto)
        assert part is not None
        assert part.last_seq == upto
        assert part.text == "".join(text for _, text in every[cursor:upto])
        assert (part.terminal is None) == (upto < end or not close)


@given(STEPS, st.booleans())
def test_rows_say_the_same_as_the_log(steps, close) -> None:
    """What is written is contiguous, and its digest is that of the tokens, however they were cut."""
    _, every, batches = filled(steps, close)
    rows = [
        (
            batch.segment.first_seq, batch.segment.last_seq, batch.token_ids, batch.text,
            batch.segment.ends.tobytes(), batch.digest, terminal_bytes(batch.segment.terminal), 1,
        )
        for batch in batches
        if batch.segment.last_seq >= batch.segment.first_seq
    ]  # fmt: skip
    stored = log_from_rows(rows, len(every) + close)
    assert list(zip(stored.ids, stored.texts, strict=True)) == [tuple(token) for token in every]
    whole = RunningDigest()
    for token in every:
        whole.update(token.id.to_bytes(4, "little", signed=True), token.text.encode())
    if rows:
        assert rows[-1][5] == whole.digest()


@given(STEPS)
def test_ids_are_known_unless_one_is_not(steps) -> None:
    log, every, _ = filled(steps, False)
    assert log.token_ids.tolist() == [token.id for token in every]
    assert log.ids_known == all(token.id != UNKNOWN_ID for token in every)


def test_a_batch_is_of_one_attempt_and_records_go_with_the_last() -> None:
    log = new_log()
    log.append(tokens("ab"), 1)
    log.record("first")  # type: ignore[arg-type]
    log.append(tokens("cd"), 2)
    log.record("second")  # type: ignore[arg-type]
    one, two = log.take(), log.take()
    assert (one.attempt, one.segment.text, one.records) == (1, "ab", [])
    assert (two.attempt, two.segment.text, two.records) == (2, "cd", ["first", "second"])
    assert not log.has_pending


async def test_notes_hold_up_no_token_and_ride_along_with_what_is_recorded() -> None:
    log = new_log()
    log.note("told")  # type: ignore[arg-type]
    assert not log.has_pending
    log.append(tokens("a"), 1)
    assert log.take().records == []
    log.append(tokens("b"), 1)
    log.record("pressing")  # type: ignore[arg-type]
    assert log.take().records == ["told", "pressing"]
    assert not log.has_pending


async def test_notes_are_written_after_a_while_or_when_somebody_waits(monkeypatch) -> None:
    monkeypatch.setattr(token_log, "NOTES_SECONDS", 0.02)
    notified = asyncio.Event()
    log = SessionLog(uuid4(), 1, lambda log: notified.set())
    log.note("soon")  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        await notified.wait()
    assert log.take().records == ["soon"]
    monkeypatch.setattr(token_log, "NOTES_SECONDS", 3600.0)
    log.note("at once")  # type: ignore[arg-type]
    waiting = asyncio.create_task(log.flushed())
    await asyncio.sleep(0)
    batch = log.take()
    assert batch.records == ["at once"]
    log.committed(batch, False)
    async with asyncio.timeout(5):
        await waiting


async def test_a_lost_log_has_no_notes_left() -> None:
    log = new_log()
    log.note("late")  # type: ignore[arg-type]
    log.lose(RuntimeError())
    log.press()
    assert not log.has_pending


def test_nothing_is_read_before_it_is_committed() -> None:
    log = new_log()
    log.append(tokens("abc"), 1)
    batch = log.take()
    assert log.slice_after(0) is None
    log.committed(batch, False)
    piece = log.slice_after(0)
    assert piece is not None
    assert piece.text == "abc"


def test_nothing_is_appended_after_the_end() -> None:
    log = new_log()
    log.close({}, 1)
    for more in (lambda: log.append(tokens("x"), 1), lambda: log.close({}, 1)):
        with pytest.raises(LogClosed):
            more()


@pytest.fixture
def small_memory(settings):
    settings.STREAMING = dataclasses.replace(conf(), log_max_events=10_000, log_max_bytes=100)


@pytest.mark.usefixtures("small_memory")
async def test_memory_is_bounded_and_the_rest_is_in_the_database(bench: Bench) -> None:
    log = await bench.created_surely()
    for number in range(300):
        log.append(tokens(f"{number:4}"), 1)
        await log.flushed()
    assert sum(len(segment.text) for segment in log._durable) <= 100
    expected = "".join(f"{number:4}" for number in range(300))
    for cursor in (0, 1, 2, 3, 999, 1090):
        with pytest.raises(LookupError):
            log.slice_after(cursor)
        text, seq = "", cursor
        while piece := await slice_from_database(bench.pool, log.session_id, seq):
            text, seq = text + piece.text, piece.last_seq
        assert text == expected[cursor:]
    newest = log.slice_after(1150)
    assert newest is not None
    assert newest.text == expected[1150:]
    assert await full_text(bench.pool, log) == expected


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cursor=st.integers(0, 30))
async def test_the_database_gives_the_same_from_any_cursor(bench: Bench, cursor: int) -> None:
    log = await bench.created_surely()
    text = "".join(chr(0x4E00 + number) for number in range(30))
    for begin in range(0, 30, 7):
        log.append(tokens(text[begin : begin + 7]), 1)
        await log.flushed()
    log.close({"state": "completed"}, 1)
    await log.flushed()
    piece = await slice_from_database(bench.pool, log.session_id, cursor)
    assert piece is not None
    assert (piece.last_seq, piece.text) == (31, text[cursor:])
    assert piece == log.slice_after(cursor)


async def test_waiting_for_a_flush_that_never_comes_can_be_given_up() -> None:
    log = new_log()
    waiting = log.changed()
    waiting.cancel()
    log.wake()
    other = log.changed()
    log.wake()
    assert other.done()
    assert not log._waiters or all(waiter.done() for waiter in log._waiters)


async def test_who_takes_what_becomes_durable_goes_on_waiting():
    log = new_log()
    taken: list[str] = []

    def follow(segment: token_log.Segment) -> bool:
        taken.append(segment.text)
        if segment.text == "broken":
            raise ZeroDivisionError
        return segment.text == "more"

    waits, other = log.changed(follow), log.changed()
    log.append([Token(1, "more")], 1)
    flush(log)
    assert (taken, waits.done(), other.done()) == (["more"], False, True)
    log.append([Token(1, "else")], 1)
    flush(log)
    assert (taken, waits.done()) == (["more", "else"], True)
    waits = log.changed(follow)
    log.wake()  # other news is for its task
    assert (len(taken), waits.done()) == (2, True)
    gone, fails = log.changed(follow), log.changed(follow)
    gone.cancel()
    log.append([Token(1, "broken")], 1)
    flush(log)  # whoever cannot take it is told so, and nobody else
    assert taken[2:] == ["broken"]
    assert isinstance(fails.exception(), ZeroDivisionError)
    assert log.durable_seq == 3
