"""The token log as it stands in PostgreSQL, for readers far behind and for continuations."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.digest import RunningDigest
from streaming.errors import JournalUnavailable
from streaming.runtime.token_log import LogSlice, Segment, SessionLog, joined

ROWS_AT_ONCE = 200
LAST_TOKENS = 50
RETRY_SECONDS = 0.2
KNOWN_DAYS = 10_000
"""Sessions whose day is remembered."""

_days_of: dict[UUID, date] = {}


async def slice_from_database(
    pool: AsyncConnectionPool, session_id: UUID, seq: int, upto: int | None = None
) -> LogSlice | None:
    """Durable tokens beyond ``seq``: a piece of them, from at most ``ROWS_AT_ONCE`` checkpoints.

    ``upto``: the last one that is wanted, beyond ``seq``.

    Waits while the database is away. Raises ``JournalUnavailable`` when that takes too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + conf().journal_down_seconds
    while True:
        try:
            segments = await _segments(pool, session_id, seq)
        except psycopg.OperationalError as exc:
            if loop.time() > deadline:
                raise JournalUnavailable from exc
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
    if not segments:
        return None
    last = segments[-1].last_seq
    return joined(segments, seq, last if upto is None else min(upto, last))


async def _segments(pool: AsyncConnectionPool, session_id: UUID, seq: int) -> list[Segment]:
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT first_seq, last_seq, text, text_ends, terminal FROM streaming_tokencheckpoint"
            " WHERE session_id = %s AND expires_on = ANY(%s) AND last_seq > %s"
            " ORDER BY first_seq LIMIT %s",
            (session_id, await _days(connection, [session_id]), seq, ROWS_AT_ONCE),
            prepare=False,
            binary=True,
        )
        return [_segment(*row) for row in await cursor.fetchall()]


async def full_text(pool: AsyncConnectionPool, log: SessionLog) -> str:
    """The text of the whole answer so far, once all of it is durable. Raises ``log.lost``."""
    await log.flushed()
    parts = []
    seq = 0
    while seq < log.durable_seq:
        piece = await slice_from_database(pool, log.session_id, seq)
        if piece is None:
            break
        parts.append(piece.text)
        seq = piece.last_seq
    return "".join(parts)


async def last_character(pool: AsyncConnectionPool, log: SessionLog) -> str:
    """The last character of the answer so far, once all of it is durable; "" if it has none.

    Raises ``log.lost``.
    """
    await log.flushed()
    seq = log.durable_seq
    while seq > 0:
        first = max(0, seq - LAST_TOKENS)
        try:
            piece = log.slice_after(first, seq)
        except LookupError:
            piece = await slice_from_database(pool, log.session_id, first)
        if piece is not None and piece.text:
            return piece.text[-1]
        seq = first
    return ""


@dataclass(slots=True)
class StoredLog:
    """All of a log that is durable, as its next owner goes on from it."""

    token_ids: array[int] = field(default_factory=lambda: array("i"))
    digest: RunningDigest = field(default_factory=RunningDigest)
    stored_digest: bytes = RunningDigest().digest()
    ends_surely: bool = True

    @property
    def is_intact(self) -> bool:
        """Whether ids and text are those that were written."""
        return self.stored_digest == self.digest.digest()


async def read_logs(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], session_ids: list[UUID]
) -> dict[UUID, StoredLog]:
    """The logs of sessions, also of those that have no token yet."""
    logs = {session_id: StoredLog() for session_id in session_ids}
    days = await _days(connection, session_ids)
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(
            "SELECT session_id, token_ids, text, digest, ends_surely FROM streaming_tokencheckpoint"
            " WHERE session_id = ANY(%s) AND expires_on = ANY(%s) ORDER BY session_id, first_seq",
            (session_ids, days),
            prepare=False,
        )
        async for session_id, ids, text, digest, ends_surely in cursor:
            log = logs[session_id]
            log.token_ids.frombytes(bytes(ids))
            log.digest.update(bytes(ids), bytes(text))
            log.stored_digest = bytes(digest)
            log.ends_surely = ends_surely
    return logs


async def _days(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], session_ids: list[UUID]
) -> list[date]:
    """The days on which these sessions' content leaves: which partitions their rows are in.

    They are asked for first because a statement that does not name the days as values is planned
    for all partitions, and locks them. A session's day never changes.
    """
    known = {
        session_id: _days_of[session_id] for session_id in session_ids if session_id in _days_of
    }
    missing = [session_id for session_id in session_ids if session_id not in known]
    if missing:
        cursor = await connection.execute(
            "SELECT session_id, expires_on FROM session_fence WHERE session_id = ANY(%s)",
            (missing,),
        )
        found = dict(await cursor.fetchall())
        if len(_days_of) + len(found) > KNOWN_DAYS:
            _days_of.clear()
        _days_of.update(found)
        known |= found
    return list(set(known.values()))


def _segment(first: int, last: int, text: bytes, ends: bytes, terminal: Any) -> Segment:
    return Segment(
        first,
        last,
        bytes(text).decode(),
        array("i", bytes(ends)),
        None if terminal is None else orjson.loads(bytes(terminal)),
    )
