"""A moderator that is connected: what it is asked, and what becomes of the answer."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from streaming.conf import conf
from streaming.core.chunks import Token
from streaming.core.content_rules import Action, ContentFilter, Rule, RuleSet, Told
from streaming.core.moderation import Verdict
from streaming.runtime import screening
from streaming.runtime.screening import Portion, Screening


class Listed:
    """Stops at one word and flags another; ``delay``: how long it thinks; it may break."""

    name = "listed"

    def __init__(self, *, delay: float = 0, breaks: bool = False) -> None:
        self.asked: list[str] = []
        self._delay = delay
        self._breaks = breaks

    async def judge(self, window: str) -> Verdict:
        self.asked.append(window)
        await asyncio.sleep(self._delay)
        if self._breaks:
            raise ConnectionError("no model")
        if "worst" in window:
            return Verdict.STOP
        return Verdict.FLAG if "bad" in window else Verdict.PASS


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    def change(**changed: Any) -> None:
        in_force = dataclasses.replace(conf(), **changed)
        monkeypatch.setattr(screening, "conf", lambda: in_force)

    change(moderation_window=10, moderation_seconds=5)
    return change


class Session:
    """What of a live session the screening needs; its log keeps the records."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.reference = "K7Q-4MX"
        self.principal = SimpleNamespace(tenant_id=1)
        self.told = Told()
        self.records: list[Any] = []
        self.log = SimpleNamespace(last_seq=0, record=lambda *records: self.records.extend(records))

    @property
    def told_of(self) -> list[tuple[str, str]]:
        events = [one.values for one in self.records if one.values.get("kind") == "filtered"]
        return [(event["data"]["rule"], event["data"]["action"]) for event in events]


async def run(
    session: Session, moderator: Listed, text: str, rules: list[Rule] | None = None
) -> tuple[str, str | None]:
    """What is shown of a text that comes in small tokens, and how it ends."""
    content_filter = RuleSet(rules, 256).filter() if rules else ContentFilter([])
    screen = Screening(session, content_filter, moderator)  # type: ignore[arg-type]
    shown = ""
    for at in range(0, len(text), 3):
        is_last = at + 3 >= len(text)
        portion = Portion([Token(at, text[at : at + 3])], "stop" if is_last else None, True)
        portion = await screen.judged(screen.screen(portion, None))
        before = session.log.last_seq
        session.log.last_seq += len(portion.tokens)
        shown += "".join(token.text for token in portion.tokens)
        screen.note(portion.hits, before)
        if portion.finish is not None:
            assert screen.held_tokens == 0
            return shown, portion.finish
    raise AssertionError("it did not end")


async def test_it_sees_all_of_the_answer_before_a_reader_does(settings: Any) -> None:
    session, moderator = Session(), Listed()
    text = "a good answer, and nothing else, to the end"
    assert await run(session, moderator, text) == (text, "stop")
    assert "".join(moderator.asked) == text
    assert all(len(window) >= 10 for window in moderator.asked[:-1])
    assert session.told_of == []


async def test_a_stop_ends_the_answer_before_its_window(settings: Any) -> None:
    session, moderator = Session(), Listed()
    shown, finish = await run(session, moderator, "0123456789ab the worst of all, and more")
    assert (shown, finish) == ("0123456789ab", "content_filter")
    assert session.told_of == [("listed", "stop")]
    assert [one.values.get("review") for one in session.records if "review" in one.values] == [
        "needed"
    ]


async def test_a_flag_is_told_once_to_the_audit_log_and_the_answer_goes_on(settings: Any) -> None:
    session, moderator = Session(), Listed()
    text = "bad bad bad bad bad bad bad bad"
    assert await run(session, moderator, text) == (text, "stop")
    assert set(session.told_of) == {("listed", "flag")}
    assert len([one for one in session.records if one.values.get("kind") == "audit"]) == 1


@pytest.mark.parametrize(
    "moderator", [Listed(delay=60), Listed(breaks=True)], ids=["slow", "broken"]
)
@pytest.mark.parametrize(("fails", "end"), [("open", "stop"), ("closed", "content_filter")])
async def test_without_a_verdict_the_setting_decides(
    settings: Any, moderator: Listed, fails: str, end: str
) -> None:
    settings(moderation_window=10, moderation_seconds=0.01, moderation_fails=fails)
    text = "an answer of some length"
    shown, finish = await run(Session(), moderator, text)
    assert (shown, finish) == ((text if fails == "open" else ""), end)


async def test_it_is_asked_about_what_is_left_after_the_rules(settings: Any) -> None:
    session, moderator = Session(), Listed()
    rules = [Rule("mask", "worst", Action.MASK, replacement="…")]
    shown, finish = await run(session, moderator, "this is the worst of all answers", rules)
    assert (shown, finish) == ("this is the … of all answers", "stop")
    assert "".join(moderator.asked) == shown
    assert session.told_of == [("mask", "mask")]
