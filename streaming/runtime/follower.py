"""Sessions that this process has readers of, and that another process owns (or nobody).

Tokens are read from PostgreSQL; how far they reach is polled, and hinted at over the channel layer.
A session whose owner has died, or that is suspended, is taken over as soon as a reader here waits
for its next token. One that an error has suspended is taken over for those who have come back for
it; who was reading it is told the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core.delivery import Marks
from streaming.core.state import SessionState
from streaming.errors import GatewayError, error_from_openai
from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.runtime.ending import SUSPENDED_BY
from streaming.runtime.reader import Reader
from streaming.runtime.token_log import LogSlice

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ADOPTED_AT_ONCE = 25
"""Few enough that the first of very many go on early."""
LEASE_SECONDS = 1.0

_POLL = f"""
SELECT s.id, s.state, f.durable_seq, s.owner_id, f.epoch, {SUSPENDED_BY}, {OWNER_IS_DEAD}
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.id = ANY(%s)
"""
# Tells the owner that somebody reads, whatever becomes of the hints, and what has been delivered.
# It takes many rows that flushes take too, in another order: it must never wait for one.
_LEASE = """
WITH free AS (
    SELECT f.session_id, b.sent, b.taken, b.cursor, b.acked, f.delivered_seq AS former
    FROM session_fence f
    JOIN unnest(%s::uuid[], %s::int8[], %s::int8[], %s::int8[], %s::int8[])
        AS b(session_id, sent, taken, cursor, acked) USING (session_id)
    FOR NO KEY UPDATE OF f SKIP LOCKED
)
UPDATE session_fence f SET readers_until = now() + interval '3 seconds',
    sent_seq = greatest(f.sent_seq, least(free.sent, f.durable_seq)),
    taken_seq = greatest(f.taken_seq, least(free.taken, f.durable_seq)),
    cursor_seq = greatest(f.cursor_seq, least(free.cursor, f.durable_seq)),
    acked_seq = greatest(f.acked_seq, least(free.acked, f.durable_seq))
FROM free WHERE f.session_id = free.session_id
RETURNING f.session_id, free.former, least(f.delivered_seq, (
    SELECT s.completion_tokens FROM streaming_streamsession s
    WHERE s.id = f.session_id AND s.ended_at IS NOT NULL))
"""


class RemoteLog:
    """What this process knows of a log that it does not own. Reads like a ``SessionLog``."""

    def __init__(self, session_id: UUID) -> None:
        self.session_id = session_id
        self.durable_seq = 0
        self.state = SessionState.CREATED
        self.owner_id: int | None = None
        self.epoch = 0
        self.error: dict[str, Any] | None = None
        """That has suspended the session under this epoch."""
        self.lost: Exception | None = None
        self.closed = False
        """Whether its owner has said that it ends."""
        self.readers: set[Reader] = set()
        self.leased_at = 0.0
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<RemoteLog {self.session_id} {self.state.value}: durable to {self.durable_seq}>"

    def slice_after(self, seq: int, upto: int | None = None) -> LogSlice | None:
        """None: nothing new is known of. Raises ``LookupError``: it is in PostgreSQL."""
        if seq >= self.durable_seq:
            return None
        raise LookupError("read PostgreSQL")

    def error_for(self, reader: Reader) -> GatewayError | None:
        """What has suspended the session while ``reader`` read it; None: nothing, or it has come
        back for that."""
        if self.error is None or reader.since_epoch is None or self.epoch < reader.since_epoch:
            return None
        return error_from_openai(self.error)

    @property
    def ends(self) -> bool:
        """As ``SessionLog.ends``."""
        return self.closed or self.state.is_end

    def changed(self) -> asyncio.Future[None]:
        """As ``SessionLog.changed``."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def look(self) -> dict[Reader, Marks]:
        """How far its readers here have come."""
        return {reader: reader.look().copy() for reader in self.readers}

    def learned(self, durable_seq: int) -> None:
        """The log is durable up to here."""
        if durable_seq > self.durable_seq:
            self.durable_seq = durable_seq
            self.wake()


def _news(seen: dict[Reader, Marks]) -> Marks:
    """What of it is not stored yet, over all readers of a session."""
    news = Marks()
    for reader, marks in seen.items():
        news.learn(marks.since(reader.stored))
    return news


class Follower:
    """Polls all followed sessions at once. ``adopt`` takes a session over into this process.

    ``delivered`` is told how far the stored mark of delivery has moved: session, from, to.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        instance_id: int,
        adopt: Callable[[list[UUID], str], Awaitable[None]],
        watch: Callable[[UUID, int], Awaitable[None]],
        delivered: Callable[[UUID, int, int], None],
    ) -> None:
        self._pool = pool
        self._instance_id = instance_id
        self._adopt = adopt
        self._watch = watch
        self._delivered = delivered
        self._logs: dict[UUID, RemoteLog] = {}
        self._adopting: set[UUID] = set()
        self._adoptions: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Follower of {len(self._logs)} sessions>"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="follower")

    async def stop(self) -> None:
        tasks = [*self._adoptions, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, session_id: UUID, reader: Reader) -> RemoteLog:
        """Follow a session for ``reader``, until it leaves."""
        log = self._logs.get(session_id)
        if log is None:
            log = self._logs[session_id] = RemoteLog(session_id)
        log.readers.add(reader)
        self._hurry.set()
        return log

    def leave(self, session_id: UUID, reader: Reader) -> None:
        """``reader`` does not follow any more. Does nothing if it did not."""
        log = self._logs.get(session_id)
        if log is not None:
            log.readers.discard(reader)
            if not log.readers:
                del self._logs[session_id]

    def wake_all(self) -> None:
        """Have every reader look again."""
        for log in self._logs.values():
            log.wake()

    def hint(self, session_id: UUID, durable_seq: int, closed: bool = False) -> None:
        """Another process says that a session is durable up to here, and whether it ends."""
        log = self._logs.get(session_id)
        if log is not None:
            log.closed = log.closed or closed
            log.learned(durable_seq)

    async def _run(self) -> None:
        while True:
            await self._hurry.wait()
            self._hurry.clear()
            try:
                if self._logs:
                    await self._poll()
                    await self._lease(asyncio.get_running_loop().time())
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("followed sessions cannot be polled: %s", exc)
            if self._logs:
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._hurry.wait()
                except TimeoutError:
                    self._hurry.set()

    async def _poll(self) -> None:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_POLL, (list(self._logs),))
            rows = await cursor.fetchall()
        suspended, orphaned = [], []
        for session_id, state, durable_seq, owner_id, epoch, error, owner_is_dead in rows:
            log = self._logs.get(session_id)
            if log is None:
                continue
            state = SessionState(state)
            changed = (state, owner_id, epoch) != (log.state, log.owner_id, log.epoch)
            log.state, log.owner_id, log.epoch, log.error = state, owner_id, epoch, error
            for reader in log.readers:
                reader.sees(epoch + (state is SessionState.SUSPENDED))
            log.learned(durable_seq)
            if changed:
                log.wake()
            if state is SessionState.SUSPENDED:
                # A reader that is stuck is why it was suspended.
                waiting = (reader for reader in log.readers if log.error_for(reader) is None)
                if any(not self._is_stuck(log, reader) for reader in waiting):
                    suspended.append(session_id)
            elif not state.is_end and owner_is_dead:
                orphaned.append(session_id)
        self._take_over(suspended, "resumed")
        self._take_over(orphaned, "gateway_crash")

    def _is_stuck(self, log: RemoteLog, reader: Reader) -> bool:
        now = asyncio.get_running_loop().time()
        return reader.is_stuck(log.durable_seq, now, conf().grace_seconds)

    async def _lease(self, now: float) -> None:
        due = [
            log
            for log in self._logs.values()
            if now - log.leased_at >= LEASE_SECONDS
            and not log.state.is_end
            and any(not self._is_stuck(log, reader) for reader in log.readers)
        ]
        if not due:
            return
        seen = [log.look() for log in due]
        news = [_news(marks) for marks in seen]
        arguments = (
            [log.session_id for log in due],
            [marks.sent for marks in news],
            [marks.taken for marks in news],
            [marks.cursor for marks in news],
            [marks.acked for marks in news],
        )
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_LEASE, arguments)
            leased = {row[0]: row[1:] for row in await cursor.fetchall()}
        for log, marks in zip(due, seen, strict=True):
            if log.session_id in leased:
                log.leased_at = now
                for reader, stored in marks.items():
                    reader.stored = stored
                self._delivered(log.session_id, *leased[log.session_id])
            if log.owner_id is not None and log.owner_id != self._instance_id:
                await self._watch(log.session_id, log.owner_id)

    def _take_over(self, session_ids: list[UUID], reason: str) -> None:
        wanted = [session_id for session_id in session_ids if session_id not in self._adopting]
        self._adopting.update(wanted)
        for first in range(0, len(wanted), ADOPTED_AT_ONCE):
            some = wanted[first : first + ADOPTED_AT_ONCE]
            task = asyncio.create_task(self._adopt_some(some, reason), name="adoption")
            self._adoptions.add(task)
            task.add_done_callback(self._adoptions.discard)

    async def _adopt_some(self, session_ids: list[UUID], reason: str) -> None:
        try:
            await self._adopt(session_ids, reason)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.info("%d sessions cannot be taken over yet: %s", len(session_ids), exc)
        except Exception:  # the edge of the task
            logger.exception("a takeover failed")
        finally:
            self._adopting.difference_update(session_ids)
        for session_id in session_ids:
            log = self._logs.get(session_id)
            if log is not None:
                log.wake()
