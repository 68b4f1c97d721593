"""Every attempt that was begun is written down as ended, whatever ends it."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest

from streaming.core.chat import parse_chat_request
from streaming.core.chunks import Sampling, TokenChunk
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Generation, Take
from streaming.errors import JournalUnavailable, SessionLost
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Fleet, Node
from streaming.runtime.attempt import UNWRITTEN_ENOUGH, AttemptRun
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.records import RecordKind
from streaming.runtime.token_log import SessionLog
from streaming.runtime.turns import Turns
from tests.failover.test_whole_answers import Overseer


class NoRoom(Overseer):
    """The journal takes no more."""

    async def room(self) -> None:
        raise JournalUnavailable


class Much:
    """A stream that brings more than may wait for the journal."""

    def __init__(self, generation: Generation) -> None:
        pass

    async def pour(self, take: Take) -> bool:
        take([TokenChunk([7], "x")] * (UNWRITTEN_ENOUGH + 1))
        return True

    async def aclose(self) -> None:
        pass


def attempt() -> AttemptRun:
    log = SessionLog(uuid4(), 1, lambda log: None)
    messages = [{"role": "user", "content": "x"}]
    session = LiveSession(
        id=log.session_id, reference="AAAAAAA", principal=Principal(1, "acme", None),
        request=parse_chat_request({"model": "m", "messages": messages}),
        model="m", seed=1, log=log,
    )  # fmt: skip
    dialect = SimpleNamespace(generate=Much, name="vllm")
    node = Node(1, "a", "http://a", dialect, NodeOptions())
    generation = Generation(
        model="m", prompt=[1], max_tokens=None, min_tokens=0, sampling=Sampling(0), request_id="r"
    )
    return AttemptRun(
        session=session, node=node, number=1, kind="first", grade=None, generation=generation,
        known="", overseer=NoRoom(), booking=Booking(Fleet(), node), turn=Turns().next(), prompt_size=1,
    )  # fmt: skip


def ends(run: AttemptRun) -> list[str]:
    records = run.session.log._records
    return [r.values["end_reason"] for r in records if r.kind is RecordKind.ATTEMPT_ENDED]


async def test_one_whose_session_ends_by_our_own_fault():
    run = attempt()
    with pytest.raises(JournalUnavailable):
        await run.run()
    assert ends(run) == ["cancelled"]


async def test_one_whose_session_somebody_else_owns_by_now_is_written_down_there():
    run = attempt()
    run.session.log.lose(SessionLost())
    with pytest.raises(SessionLost):
        await run.run()
    assert ends(run) == []
