"""What clients report of their side of an answer, in the time line of its session."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal
from streaming.runtime.records import now
from streaming.services.attach import find

TRANSPORTS = ("websocket", "sse", "longpoll", "plain")
MAX_REPORTS = 10
"""Of one session: each tab and each reload may send one, nobody may fill the time line."""

_STORE = """
INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
SELECT %(session)s, %(at)s, 'client_report', %(seq)s, %(data)s::jsonb
WHERE (SELECT count(*) FROM streaming_sessionevent
       WHERE session_id = %(session)s AND kind = 'client_report') < %(most)s
"""


async def store_report(
    gateway: Gateway, principal: Principal, session_id: UUID, report: dict[str, Any]
) -> None:
    """Note a report. Raises ``NotFound``; what is too much is dropped without a word."""
    stored = await find(gateway, principal, session_id)
    values = {
        "session": session_id,
        "at": now(),
        "seq": stored.durable_seq,
        "data": orjson.dumps(report).decode(),
        "most": MAX_REPORTS,
    }
    async with gateway.pool.connection() as connection:
        await connection.execute(_STORE, values)
