"""Limits that warn before they strike."""

from __future__ import annotations

import asyncio
import dataclasses
from uuid import uuid4

import pytest

from streaming.conf import conf
from streaming.core.chat import parse_chat_request
from streaming.core.state import SessionState
from streaming.runtime.limits import LimitTimer, answer_limit, silence_limit
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.records import RecordKind
from streaming.runtime.token_log import SessionLog
from tests.durability.reader import until


class Calls(list):
    def soft(self, silence: float) -> None:
        self.append(("soft", silence))

    def hard(self, silence: float) -> None:
        self.append(("hard", silence))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_the_warning_comes_first_and_each_once(calls):
    with LimitTimer(0.12, soft=calls.soft, hard=calls.hard):
        await until(lambda: "hard" in calls.names)
        await asyncio.sleep(0.2)
    (_, soft), (_, hard) = calls
    assert calls.names == ["soft", "hard"]
    assert 0.08 <= soft < hard
    assert hard >= 0.12


async def test_data_holds_both_off_and_each_silence_is_warned_of_anew(calls):
    loop = asyncio.get_running_loop()
    with LimitTimer(0.3, soft=calls.soft, hard=calls.hard) as limit:
        for _ in range(10):
            await asyncio.sleep(0.05)
            limit.moved(loop.time(), 0.3)
        assert calls == []
        for silence in (1, 2):
            await until(lambda wanted=silence: len(calls) == wanted)
            limit.moved(loop.time(), 0.3)
    assert calls.names == ["soft", "soft"]


async def test_a_shorter_limit_is_in_force_at_once_and_a_longer_one_too(calls):
    loop = asyncio.get_running_loop()
    with LimitTimer(60.0, soft=calls.soft, hard=calls.hard) as limit:
        limit.moved(loop.time(), 0.1)
        await until(lambda: "soft" in calls.names)
        limit.moved(loop.time(), 60.0)
        await asyncio.sleep(0.2)
    assert calls.names == ["soft"]


async def test_nothing_counts_while_nobody_reads(calls):
    with LimitTimer(0.1, soft=calls.soft, hard=calls.hard) as limit:
        with limit.paused():
            await asyncio.sleep(0.3)
        assert calls == []
        await until(lambda: "hard" in calls.names)


async def test_left_before_its_time_it_is_silent(calls):
    with LimitTimer(0.05, soft=calls.soft, hard=calls.hard):
        pass
    await asyncio.sleep(0.1)
    assert calls == []


def session() -> LiveSession:
    log = SessionLog(uuid4(), 1, lambda log: None)
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    return LiveSession(
        id=log.session_id, reference="AAAAAAA", principal=Principal(1, "acme", None),
        request=parse_chat_request(body), model="m", seed=1, log=log, created=0,
    )  # fmt: skip


def events(live: LiveSession) -> list[tuple[str, dict]]:
    live.log.press()
    return [
        (record.values["kind"], record.values["data"])
        for record in live.log.take().records
        if record.kind is RecordKind.EVENT
    ]


async def test_an_engine_s_silence_is_in_the_time_line_before_it_fails_the_attempt():
    live = session()

    async def read() -> None:
        async with asyncio.timeout(None) as timeout:
            with silence_limit(live, "gpu-a", timeout, 0.15):
                await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await read()
    ((kind, data),) = events(live)
    assert kind == "engine_silent"
    assert data["node"] == "gpu-a"
    assert data["seconds"] >= 0.1


async def test_an_answer_that_takes_too_long_ends_and_says_so(settings):
    settings.STREAMING = dataclasses.replace(conf(), max_answer_seconds=0.2)
    live = session()
    with answer_limit(live):
        await until(lambda: live.end_request is not None)
    ((kind, data),) = events(live)
    assert (kind, data["limit"]) == ("answer_long", 0.2)
    end = live.end_request
    assert (end.state, end.cause) == (SessionState.FAILED, "timeout")
    assert end.error["code"] == "answer_timeout"
    assert end.evidence["because"]


async def test_an_answer_that_is_whole_is_not_taken_back(settings):
    settings.STREAMING = dataclasses.replace(conf(), max_answer_seconds=0.05)
    live = session()
    live.finish_reason = "stop"
    with answer_limit(live):
        await asyncio.sleep(0.15)
    assert live.end_request is None
