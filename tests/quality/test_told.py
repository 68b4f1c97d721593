"""When readers hear of what happens to their answer."""

from __future__ import annotations

from uuid import uuid4

from streaming.runtime.token_log import SessionLog
from tests.durability.conftest import tokens
from tests.durability.reader import until
from tests.quality.readers import live_session


async def test_without_tokens_after_a_moment() -> None:
    log = SessionLog(uuid4(), 1, lambda log: None)
    session = live_session(log)
    changed = log.changed()
    session.tell("recovering")
    session.tell("attempt")
    assert not changed.done()
    await until(changed.done)


async def test_with_the_tokens_that_come_before_that() -> None:
    log = SessionLog(uuid4(), 1, lambda log: None)
    session = live_session(log)
    changed = log.changed()
    session.tell("recovering")
    log.append(tokens("on"), 1)
    await until(lambda: session._telling is None)
    assert not changed.done()  # their flush is what wakes it
