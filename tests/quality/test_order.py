"""Control events stand exactly behind the token of their seq, however tokens come together."""

from __future__ import annotations

import asyncio
import dataclasses
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from streaming.runtime.token_log import SessionLog
from tests.durability.conftest import Bench, tokens
from tests.quality.readers import Course, attachment, flush, live_session

TEXT = "abcdefghijklmnopqrst"


async def test_a_slice_from_before_and_after_a_failover() -> None:
    log = SessionLog(uuid4(), 1, lambda log: None)
    session = live_session(log)
    session.tell("attempt")
    log.append(tokens("before"), 1)
    session.tell("recovering")
    session.tell("attempt")
    session.tell("recovered")
    log.append(tokens("after"), 2)
    log.close({"state": "completed"}, 2)
    flush(log)
    course = Course()
    await course.follow(attachment(session))
    seam = ["recovering", "attempt", "recovered"]
    assert course.seen == ["attempt", "before", *seam, "after|"]


async def test_a_reader_that_has_come_back_is_not_told_of_what_lies_behind_it() -> None:
    log = SessionLog(uuid4(), 1, lambda log: None)
    session = live_session(log)
    log.append(tokens("one"), 1)
    session.tell("recovering")
    session.tell("recovered")
    log.append(tokens("two"), 2)
    session.tell("recovering")
    log.append(tokens("three"), 3)
    log.close({"state": "completed"}, 3)
    flush(log)
    at_the_seam, behind_it = Course(), Course()
    await at_the_seam.follow(attachment(session, 3))
    await behind_it.follow(attachment(session, 4))
    assert at_the_seam.seen == ["recovering", "recovered", "two", "recovering", "three|"]
    assert behind_it.seen == ["wo", "recovering", "three|"]


@given(st.data())
def test_wherever_they_fall(data) -> None:
    async def course() -> None:
        log = SessionLog(uuid4(), 1, lambda log: None)
        session = live_session(log)
        places = sorted(data.draw(st.lists(st.integers(0, len(TEXT)), max_size=5)))
        flushes = data.draw(st.sets(st.integers(1, len(TEXT))))
        cursor = data.draw(st.integers(0, len(TEXT)))
        for seq in range(len(TEXT) + 1):
            for place in places:
                if place == seq:
                    session.tell(f"<{place}>", at_once=False)
            if seq < len(TEXT):
                log.append(tokens(TEXT[seq]), 1)
                if seq + 1 in flushes:
                    flush(log)
        log.close({"state": "completed"}, 1)
        flush(log)
        read = Course()
        await read.follow(attachment(session, cursor))
        expected = ""
        for seq in range(cursor, len(TEXT) + 1):
            expected += "".join(f"<{place}>" for place in places if place == seq)
            expected += TEXT[seq : seq + 1]
        assert "".join(read.seen) == expected + "|"

    asyncio.run(course())


async def test_a_slice_from_the_database(bench: Bench, settings) -> None:
    settings.STREAMING = dataclasses.replace(settings.STREAMING, log_max_events=1)
    log = await bench.created_surely()
    session = live_session(log)
    for part in ("be", "fore"):
        log.append(tokens(part), 1)
        await log.flushed()
    session.tell("recovering")
    for part in ("aft", "er", "wards"):
        log.append(tokens(part), 2)
        await log.flushed()
    log.close({"state": "completed"}, 2)
    await log.flushed()
    course = Course()
    await course.follow(attachment(session, 1, bench.pool))
    assert "".join(course.seen) == "eforerecoveringafterwards|"
    assert course.at[course.seen.index("recovering")] == len("before")
