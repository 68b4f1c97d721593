"""Only the owner appends, and one session's trouble is nobody else's. The journal on a real database."""

from __future__ import annotations

import asyncio
from uuid import UUID

import orjson
import psycopg
import pytest

from streaming.core.chunks import Token
from streaming.core.delivery import Marks
from streaming.errors import SessionLost
from streaming.runtime.journal import Journal, Poisoned, record_event
from streaming.runtime.log_reader import full_text, read_logs
from streaming.runtime.records import Record, RecordKind, now
from streaming.runtime.token_log import SessionLog
from tests.durability.conftest import Bench, take_over, tokens
from tests.durability.reader import Readers, Seen, question, until
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess


async def test_a_takeover_between_a_zombies_flush_and_its_turn(bench: Bench) -> None:
    """The zombie's flush waits for the fence's row while the takeover commits: it must not pass."""
    zombie, other = await bench.created_surely(), await bench.created_surely()
    zombie.append(tokens("before "), 1)
    await zombie.flushed()
    async with await bench.connect() as rival:
        await rival.execute(*take_over(zombie.session_id))
        zombie.append(tokens("zombie"), 1)
        other.append(tokens("alive"), 1)
        await _until_waiting(bench)
        await rival.commit()
    with pytest.raises(SessionLost):
        await zombie.flushed()
    await other.flushed()
    assert isinstance(zombie.lost, SessionLost)
    assert stored_log(bench.stack, zombie.session_id).text == "before "
    assert stored_log(bench.stack, other.session_id).text == "alive"
    assert other.lost is None


async def test_a_takeover_that_is_taken_back_does_not_disturb(bench: Bench) -> None:
    log = await bench.created_surely()
    async with await bench.connect() as rival:
        await rival.execute(*take_over(log.session_id))
        log.append(tokens("mine"), 1)
        await _until_waiting(bench)
        await rival.rollback()
    await log.flushed()
    assert stored_log(bench.stack, log.session_id).text == "mine"


async def test_a_takeover_waits_for_a_flush_that_came_first(bench: Bench) -> None:
    """The new owner reads the log after its takeover, so it has to see all of the old one's."""
    log = await bench.created_surely()
    async with await bench.connect() as holder, await bench.connect() as rival:
        # What the journal's flush does, held open before its commit.
        await holder.execute(
            "UPDATE session_fence SET durable_seq = 1 WHERE session_id = %s AND epoch = 1",
            (log.session_id,),
        )
        taking = asyncio.create_task(rival.execute(*take_over(log.session_id)))
        done, _ = await asyncio.wait({taking}, timeout=0.2)
        assert not done
        await holder.rollback()
        await taking
        await rival.commit()


async def test_an_old_epoch_goes_on_sending(bench: Bench) -> None:
    log, heir = await bench.created_surely(), None
    log.append(tokens("old"), 1)
    await log.flushed()
    async with await bench.connect() as rival:
        await rival.execute(*take_over(log.session_id))
        await rival.commit()
    heir = SessionLog(log.session_id, 2, bench.journal.notify)
    stale = [SessionLog(log.session_id, 1, bench.journal.notify) for _ in range(3)]
    for number, ghost in enumerate(stale):  # at the right place, too late, and too early
        ghost._taken_seq = ghost.durable_seq = ghost.last_seq = 3 + (number - 1)
        ghost.append(tokens("ghost"), 2)
        with pytest.raises(SessionLost):
            await ghost.flushed()
    assert heir.lost is None
    assert stored_log(bench.stack, log.session_id).text == "old"


@pytest.mark.parametrize("surely", [True, False])
async def test_the_next_owner_knows_whether_the_log_ends_with_a_character(bench: Bench, surely):
    log = await bench.created_surely()
    log.append(tokens("one"), 1, ends_surely=not surely)
    await log.flushed()
    log.append(tokens("two"), 1, ends_surely=surely)
    await log.flushed()
    async with await bench.connect() as connection:
        stored = (await read_logs(connection, [log.session_id]))[log.session_id]
    assert (stored.ends_surely, stored.is_intact) == (surely, True)
    heir = SessionLog(log.session_id, 2, bench.journal.notify)
    heir.continue_from(stored.token_ids, stored.digest, Marks(), stored.ends_surely)
    assert heir.ends_surely is surely


async def test_a_lost_log_stops_its_producer_once(bench: Bench) -> None:
    log = await bench.created_surely()
    calls = []
    log.on_lost = lambda: calls.append(1)
    async with await bench.connect() as rival:
        await rival.execute(*take_over(log.session_id))
        await rival.commit()
    log.append(tokens("x"), 1)
    with pytest.raises(SessionLost):
        await log.flushed()
    log.lose(SessionLost())
    with pytest.raises(SessionLost):
        log.append(tokens("y"), 1)
    assert calls == [1]


async def test_a_gateway_whose_session_was_taken_over_lets_go(start_stack) -> None:
    """Its engine is left, the new owner's log is untouched, and its reader now follows that."""
    with SimulatorProcess("vllm", pace=50) as engine:
        stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"])
        key = stack.api_key()
        taken, other = Seen(question("Taken over", 400)), Seen(question("Undisturbed", 60))
        async with Readers(stack.gateway().url, key) as readers:
            reading = [
                asyncio.create_task(readers.ask(seen.messages, seen=seen))
                for seen in (taken, other)
            ]
            await until(lambda: len(taken.tokens) > 3 and len(other.tokens) > 3)
            takeover, _ = take_over(UUID(taken.session_id))
            ((_, at_takeover),) = stack.sql(f"{takeover}, durable_seq", taken.session_id)
            await until(lambda: engine.stats()["running"] <= 1, 1)
            await asyncio.wait_for(reading[1], 10)
            assert not reading[0].done()
            reading[0].cancel()
            await asyncio.gather(reading[0], return_exceptions=True)
        await until(lambda: engine.stats()["running"] == 0)
        assert taken.error is None
        assert other.is_whole, other.trouble
        log = stored_log(stack, taken.session_id)
        assert len(log.ids) == at_takeover
        assert log.terminal is None
        assert log.text.startswith(taken.text)


async def _until_waiting(bench: Bench) -> None:
    """Until the journal's statement waits for a lock."""
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    )
    name = f"unbroken journal {bench.instance_id}"
    await until(lambda: bool(bench.stack.sql(query, name)))


# Poison

POISONS = {
    "NUL in a time-line event": lambda log: log.record(
        record_event(log.session_id, "recovering", 0, now(), words="a\x00b")
    ),
    "a surrogate in a time-line event": lambda log: log.record(
        record_event(log.session_id, "recovering", 0, now(), words="\ud800")
    ),
    "a surrogate in the text": lambda log: log.append([Token(7, "a\ud800")], 1),
    "a surrogate in the terminal record": lambda log: log.close({"error": "\ud800"}, 1),
    "an id that is no int32": lambda log: log.record(
        Record(RecordKind.SESSION_CHANGED, {"id": log.session_id, "prompt_tokens": 2**40})
    ),
    "a text that is too long": lambda log: log.record(
        Record(RecordKind.SESSION_CHANGED, {"id": log.session_id, "error_code": "x" * 500})
    ),
    "something JSON cannot hold": lambda log: log.record(
        record_event(log.session_id, "recovering", 0, now(), words=object())
    ),
}


@pytest.mark.parametrize("poison", POISONS)
async def test_poison_ends_its_own_session_only_and_is_explained(bench: Bench, poison: str) -> None:
    logs = [await bench.created_surely() for _ in range(9)]
    for log in logs:
        log.append(tokens("good "), 1)
    await asyncio.gather(*(log.flushed() for log in logs))
    guilty = logs[4]
    for log in logs:
        if log is guilty:
            POISONS[poison](log)
        else:
            log.append(tokens("and on"), 1)
    await asyncio.gather(*(log.flushed() for log in logs if log is not guilty))
    with pytest.raises(Poisoned):
        await guilty.flushed()
    await until(lambda: not guilty.in_flight)
    for log in logs:
        if log is not guilty:
            assert stored_log(bench.stack, log.session_id).text == "good and on"
    stored = stored_log(bench.stack, guilty.session_id)
    assert stored.text == "good "
    assert stored.terminal is not None
    assert stored.terminal["error"]["code"] == "journal_refused"
    row = bench.stack.sql(
        "SELECT state, error_code, cause, completion_tokens, ended_at IS NOT NULL"
        " FROM streaming_streamsession WHERE id = %s",
        guilty.session_id,
    )
    assert row == [("failed", "journal_refused", "gateway_crash", 5, True)]
    outbox = "SELECT kind FROM streaming_outboxmessage WHERE session_id = %s"
    assert bench.stack.sql(outbox, guilty.session_id) == [("session_ended",)]


async def test_a_session_that_cannot_even_be_created(bench: Bench) -> None:
    """There is no row to explain it in; everybody else in the flush is written."""
    good = [bench.created() for _ in range(3)]
    bad = bench.created(end_user="x" * 1000)
    more = [bench.created() for _ in range(3)]
    await asyncio.gather(*(log.flushed() for log in good + more))
    with pytest.raises(Poisoned):
        await bad.flushed()
    found = "SELECT count(*) FROM streaming_streamsession WHERE id = ANY(%s)"
    assert bench.stack.sql(found, [log.session_id for log in [*good, bad, *more]]) == [(6,)]


async def test_nul_survives_in_an_answer(bench: Bench) -> None:
    log = await bench.created_surely()
    log.append([Token(1, "a\x00"), Token(2, "\x00b")], 1)
    await log.flushed()
    assert stored_log(bench.stack, log.session_id).texts == ["a\x00", "\x00b"]
    assert await full_text(bench.pool, log) == "a\x00\x00b"


# An unknown outcome


class Interrupted(Journal):
    """Loses its connection after the commit of the flush numbered ``after``, or before it."""

    after = -1
    committed = True
    seen = 0

    async def _write(self, batches):
        self.seen += 1
        if self.seen != self.after:
            return await super()._write(batches)
        if self.committed:
            await super()._write(batches)
        raise psycopg.OperationalError("the connection broke")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_a_commit_whose_outcome_is_unknown(bench: Bench, after: int, committed: bool) -> None:
    """Creation, tokens with records, records alone, and the end: each is written once."""
    journal = Interrupted(bench.stack.database_url, bench.instance_id + 1_000_000)
    journal.after, journal.committed = after, committed
    await journal.start()
    bench.journal, own = journal, bench.journal
    log = await bench.created_surely()
    log.append(tokens("one"), 1)
    log.record(record_event(log.session_id, "with tokens", 3, now()))
    await log.flushed()
    log.record(record_event(log.session_id, "alone", 3, now()))
    await log.flushed()
    log.append(tokens("two"), 1)
    log.close({"state": "completed", "finish_reason": "stop"}, 1)
    await log.flushed()
    await journal.stop()
    bench.journal = own
    assert journal.down_seconds == 0
    stored = stored_log(bench.stack, log.session_id)
    assert stored.text == "onetwo"
    assert stored.terminal == {"state": "completed", "finish_reason": "stop"}
    kinds = "SELECT kind FROM streaming_sessionevent WHERE session_id = %s ORDER BY id"
    assert bench.stack.sql(kinds, log.session_id) == [("with tokens",), ("alone",)]


async def test_a_database_that_takes_no_writes_is_waited_for(bench: Bench) -> None:
    """A standby lets clients in and refuses to write: that is an outage, and not the session's fault."""
    log = await bench.created_surely()
    connection = bench.journal._connection
    assert connection is not None
    await connection.execute("SET default_transaction_read_only = on")
    log.append(tokens("kept"), 1)
    await log.flushed()
    assert log.lost is None
    assert stored_log(bench.stack, log.session_id).text == "kept"


async def test_a_standby_counts_as_down(bench: Bench, monkeypatch) -> None:
    log = await bench.created_surely()
    write, refusing = Journal._write, True

    async def refuse(self, batches):
        if refusing:
            raise psycopg.errors.ReadOnlySqlTransaction("this is a standby")
        return await write(self, batches)

    monkeypatch.setattr(Journal, "_write", refuse)
    log.append(tokens("kept"), 1)
    await asyncio.sleep(0.7)
    assert bench.journal.down_seconds > 0.5
    assert bench.journal.flushes < 20
    refusing = False
    await log.flushed()
    assert bench.journal.down_seconds == 0
    assert orjson.dumps(stored_log(bench.stack, log.session_id).text) == b'"kept"'
