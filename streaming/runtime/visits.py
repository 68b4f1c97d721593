"""Readers' comings and goings, in the time lines of the sessions that they read."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import PoolTimeout

from streaming.runtime.journal import record_event
from streaming.runtime.records import now

if TYPE_CHECKING:
    from streaming.runtime.gateway import Gateway

logger = logging.getLogger(__name__)

# Whoever reads an answer again that had ended before adds nothing to its course.
_NOTE = """
INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
SELECT s.id, %s, %s, %s, %s::jsonb FROM streaming_streamsession s
WHERE s.id = %s AND (s.ended_at IS NULL OR s.ended_at > %s)
"""

_numbers = count(1)


class Visit:
    """One reader on one connection: ``reader_joined`` now, ``reader_left`` if it leaves early.

    ``data`` of both: ``reader``, which tells several of them apart; ``process``, the gateway's id.
    Of the first: ``protocol`` and ``cursor``. Of the second: ``how`` (closed, reset, timed_out,
    sent_away, ours: this process cut it, ended: its stream was ended, not its connection).
    """

    def __init__(self, gateway: Gateway, session_id: UUID, cursor: int, protocol: str) -> None:
        self._gateway = gateway
        self._session_id = session_id
        self._began = now()
        self._who = {
            "reader": f"{gateway.instance_id}-{next(_numbers)}",
            "process": gateway.instance_id,
        }
        self._note("reader_joined", cursor, protocol=protocol, cursor=cursor)

    def __repr__(self) -> str:
        return f"<Visit {self._who['reader']}>"

    def left(self, seq: int, how: str) -> None:
        """It is gone, after it was sent ``seq``."""
        self._note("reader_left", seq, how=how)

    def _note(self, kind: str, seq: int, **data: Any) -> None:
        data = {**self._who, **data}
        live = self._gateway.sessions.get(self._session_id)
        if live is not None and live.log.lost is None and not live.state.is_end:
            live.log.note(record_event(self._session_id, kind, seq, now(), **data))
        else:
            self._gateway.spawn(self._store(kind, seq, data), kind)

    async def _store(self, kind: str, seq: int, data: dict[str, Any]) -> None:
        values = (now(), kind, seq, orjson.dumps(data).decode(), self._session_id, self._began)
        try:
            async with self._gateway.pool.connection() as connection:
                await connection.execute(_NOTE, values)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.warning("a reader's visit was not noted: %s", exc)


AWAY_SECONDS = 10.0
"""Who has polled and does not again for so long has left."""


class PollingReaders:
    """Readers that come back with every poll: all polls of a session here are one visit."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._visits: dict[UUID, tuple[Visit, asyncio.TimerHandle | None]] = {}

    def __repr__(self) -> str:
        return f"<PollingReaders of {len(self._visits)} sessions>"

    def visit(self, session_id: UUID, cursor: int, protocol: str) -> Visit:
        """A poll has come; the visit that it belongs to."""
        visit, timer = self._visits.pop(session_id, (None, None))
        if timer is not None:
            timer.cancel()
        visit = visit or Visit(self._gateway, session_id, cursor, protocol)
        self._visits[session_id] = (visit, None)
        return visit

    def polled(self, session_id: UUID, seq: int, *, is_whole: bool) -> None:
        """A poll is over, after its reader was given everything up to ``seq``."""
        visit, timer = self._visits.pop(session_id, (None, None))
        if timer is not None:
            timer.cancel()
        if visit is not None and not is_whole:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(AWAY_SECONDS, self._left, session_id, seq)
            self._visits[session_id] = (visit, timer)

    def _left(self, session_id: UUID, seq: int) -> None:
        visit, _ = self._visits.pop(session_id)
        visit.left(seq, "closed")
