"""In whose name work writes that somebody else has begun."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from streaming.core import log_fields
from streaming.core.chat import parse_chat_request
from streaming.core.failures import AttemptFailed
from streaming.runtime.hedge import Hedge, Hedging
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.token_log import SessionLog
from streaming.runtime.turns import Turns


async def test_a_hedge_writes_in_the_name_of_its_session_whoever_has_seen_the_silence():
    session_id = uuid4()
    session = LiveSession(
        id=session_id, reference="AAAAAAA", principal=Principal(7, "acme", None),
        request=parse_chat_request({"model": "m", "messages": [{"role": "user", "content": "x"}]}),
        model="m", seed=1, log=SessionLog(session_id, 1, lambda log: None), request_id="r",
    )  # fmt: skip
    seen: dict[str, Any] = {}

    class Preparation:
        async def attempt(self, *_: object) -> None:
            seen.update(log_fields.fields())

    def unused(*_: object) -> Any: ...

    hedging = Hedging(session, SimpleNamespace(turns=Turns()), None, Preparation(), unused, unused)
    hedge = Hedge(None, SimpleNamespace(end=unused), 1.0)
    log_fields.begin(node="suspicion")
    with pytest.raises(AttemptFailed):
        await asyncio.create_task(hedging._run(hedge))
    assert seen == {"session_id": str(session_id), "request_id": "r", "tenant_id": 7}
    log_fields.begin()
