"""When a session counts as lonely: the looks are 0.2 s apart, readers come and go between them."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from streaming.core.chat import parse_chat_request
from streaming.runtime import presence as module
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.presence import Presence
from streaming.runtime.reader import Reader
from streaming.runtime.token_log import SessionLog

REQUEST = parse_chat_request({"model": "m", "messages": [{"role": "user", "content": "x"}]})


def session_of(policy: str = "suspend") -> LiveSession:
    return LiveSession(
        id=uuid4(),
        reference="AAA-AAA",
        principal=Principal(1, "acme", None, on_disconnect=policy),
        request=REQUEST,
        model="m",
        seed=None,
        log=SessionLog(uuid4(), 1, lambda log: None),
    )


class Nobody(Presence):
    """Its fences tell of no reader elsewhere; asking them lets ``meanwhile`` happen."""

    def __init__(self, session: LiveSession, meanwhile=lambda: None) -> None:
        super().__init__(None, lambda: [session])  # type: ignore[arg-type]
        self._meanwhile = meanwhile

    async def _look_at_fences(self, sessions):
        self._meanwhile()
        return set()


def test_grace_begins_when_the_last_reader_leaves():
    """Also when its whole visit fell between two looks."""
    session = session_of()
    looks = Nobody(session)
    assert not looks._is_lonely(session, 10.0)
    assert not looks._is_lonely(session, 12.9)
    reader = Reader(0, 13.0)
    session.join(reader)
    session.leave(reader)
    assert not looks._is_lonely(session, 13.1)
    assert not looks._is_lonely(session, 16.0)
    assert looks._is_lonely(session, 16.2)


@pytest.mark.parametrize("comes", [True, False])
async def test_a_reader_that_comes_while_we_ask_is_not_left_alone(
    comes: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    session = session_of()
    now = asyncio.get_running_loop().time()
    session.lonely_since = now - 60
    asked = asyncio.Event()

    def meanwhile() -> None:
        if comes and not asked.is_set():
            session.join(Reader(0, now))
        asked.set()

    looks = Nobody(session, meanwhile)
    looks.start()
    await asyncio.wait_for(asked.wait(), 2)
    await asyncio.sleep(0.05)  # some more looks
    await looks.stop()
    assert (session.end_request is None) is comes
