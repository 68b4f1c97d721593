"""What is held back and what is not. Windows are an hour here: what waits for one never comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from streaming.core.state import SessionState
from streaming.runtime.live import LiveSession
from streaming.runtime.token_log import SessionLog
from streaming.services import attach
from streaming.services.attach import Attachment
from tests.durability.conftest import tokens
from tests.durability.reader import until
from tests.quality.readers import Course, attachment, flush, live_session

HOUR = 3600.0


class Scene:
    """A session with one reader whose tokens may wait for an hour."""

    def __init__(self) -> None:
        self.log = SessionLog(uuid4(), 1, lambda log: None)
        self.session: LiveSession = live_session(self.log)
        self.attached: Attachment = attachment(self.session)
        self.attached.window = HOUR
        self.course = Course()

    def say(self, text: str) -> None:
        self.log.append(tokens(text), 1)
        flush(self.log)

    async def settled(self) -> list[str]:
        """What the reader has when nothing more comes by itself."""
        for _ in range(20):
            await asyncio.sleep(0)
        return self.course.seen


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    task = asyncio.create_task(scene.course.follow(scene.attached))
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_first_token_goes_at_once_and_the_next_ones_wait() -> None:
    async with scene() as s:
        s.say("a")
        assert await s.settled() == ["a"]
        for letter in "bcd":
            s.say(letter)
        assert await s.settled() == ["a"]


async def test_the_end_takes_along_what_waits() -> None:
    async with scene() as s:
        s.say("a")
        await s.settled()
        s.say("b")
        s.log.close({"state": "completed"}, 1)
        flush(s.log)
        await until(lambda: s.course.seen[-1].endswith("|"))
        assert "".join(s.course.seen) == "ab|"


async def test_a_failover_takes_along_what_waits_and_what_comes_behind_it() -> None:
    async with scene() as s:
        s.say("a")
        await s.settled()
        s.say("bc")
        s.session.move(SessionState.STREAMING)
        s.session.move(SessionState.RECOVERING)
        s.session.tell("recovering")
        assert await s.settled() == ["a", "bc", "recovering"]
        s.session.tell("recovered", at_once=False)
        s.session.move(SessionState.STREAMING)
        s.say("d")
        assert await s.settled() == ["a", "bc", "recovering", "recovered", "d"]
        s.say("e")
        assert (await s.settled())[-1] == "d", "behind the seam tokens are ordinary again"


async def test_a_gateway_that_stops_holds_nothing_back() -> None:
    async with scene() as s:
        s.say("a")
        await s.settled()
        s.say("b")
        s.attached._gateway.draining = True
        s.log.wake()
        assert await s.settled() == ["a", "b"]


async def test_who_reads_from_far_behind_does_not_wait() -> None:
    async with scene() as s:
        s.say("a")
        await s.settled()
        s.say("x" * attach.MOST_HELD)
        assert await s.settled() == ["a"]
        s.say("y")
        assert "".join(await s.settled()) == "a" + "x" * attach.MOST_HELD + "y"


async def test_no_timer_without_a_window() -> None:
    async with scene() as s:
        s.attached.window = 0.0
        for letter in "abc":
            s.say(letter)
            await s.settled()
        assert s.course.seen == ["a", "b", "c"]


async def test_a_window_that_is_over_lets_all_of_it_go() -> None:
    async with scene() as s:
        s.attached.window = 0.05
        for letter in "abc":
            s.say(letter)
            await s.settled()
        await until(lambda: "".join(s.course.seen) == "abc")
