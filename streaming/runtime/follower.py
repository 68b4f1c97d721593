"""Sessions that this process has readers of, and that another process owns (or nobody).

Tokens are read from PostgreSQL; how far they reach is polled, and hinted at over the channel layer.
A session whose owner has died, or that is suspended, is taken over as soon as a reader here waits
for its next token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.core.state import SessionState
from streaming.runtime.instance import OWNER_IS_DEAD
from streaming.runtime.token_log import LogSlice

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
LEASE_SECONDS = 1.0

_POLL = f"""
SELECT s.id, s.state, f.durable_seq, s.owner_id, {OWNER_IS_DEAD}
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.id = ANY(%s)
"""
# Tells the owner that somebody reads, whatever becomes of the hints.
_LEASE = """
UPDATE session_fence SET readers_until = now() + interval '3 seconds' WHERE session_id = ANY(%s)
"""


class RemoteLog:
    """What this process knows of a log that it does not own. Reads like a ``SessionLog``."""

    def __init__(self, session_id: UUID) -> None:
        self.session_id = session_id
        self.durable_seq = 0
        self.state = SessionState.CREATED
        self.owner_id: int | None = None
        self.lost: Exception | None = None
        self.users = 0
        #: Whether a reader has everything that is durable and waits for more.
        self.wanted = False
        self._waiters: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"<RemoteLog {self.session_id} {self.state.value}: durable to {self.durable_seq}>"

    def slice_after(self, seq: int) -> LogSlice | None:
        """None: nothing new is known of. Raises ``LookupError``: it is in PostgreSQL."""
        if seq >= self.durable_seq:
            self.wanted = True
            return None
        raise LookupError("read PostgreSQL")

    def changed(self) -> asyncio.Future[None]:
        """As ``SessionLog.changed``."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        future.add_done_callback(self._waiters.discard)
        return future

    def wake(self) -> None:
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)

    def learned(self, durable_seq: int) -> None:
        """The log is durable up to here."""
        if durable_seq > self.durable_seq:
            self.durable_seq = durable_seq
            self.wake()


class Follower:
    """Polls all followed sessions at once. ``adopt`` takes a session over into this process."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        instance_id: int,
        adopt: Callable[[UUID, str], Awaitable[bool]],
        watch: Callable[[UUID, int], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._instance_id = instance_id
        self._adopt = adopt
        self._watch = watch
        self._logs: dict[UUID, RemoteLog] = {}
        self._adopting: dict[UUID, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Follower of {len(self._logs)} sessions>"

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="follower")

    async def stop(self) -> None:
        tasks = [*self._adopting.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def follow(self, session_id: UUID) -> Iterator[RemoteLog]:
        """Follow a session while the block runs."""
        log = self._logs.get(session_id)
        if log is None:
            log = self._logs[session_id] = RemoteLog(session_id)
        log.users += 1
        self._hurry.set()
        try:
            yield log
        finally:
            log.users -= 1
            if log.users == 0:
                self._logs.pop(session_id, None)

    def wake_all(self) -> None:
        """Have every reader look again."""
        for log in self._logs.values():
            log.wake()

    def hint(self, session_id: UUID, durable_seq: int) -> None:
        """Another process says that a session is durable up to here."""
        log = self._logs.get(session_id)
        if log is not None:
            log.learned(durable_seq)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        leased_at = 0.0
        while True:
            await self._hurry.wait()
            self._hurry.clear()
            try:
                if self._logs:
                    await self._poll()
                    if loop.time() - leased_at >= LEASE_SECONDS:
                        leased_at = loop.time()
                        await self._lease()
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
        for session_id, state, durable_seq, owner_id, owner_is_dead in rows:
            log = self._logs.get(session_id)
            if log is None:
                continue
            state = SessionState(state)
            changed = (state, owner_id) != (log.state, log.owner_id)
            log.state, log.owner_id = state, owner_id
            log.learned(durable_seq)
            if changed:
                log.wake()
            if state is SessionState.SUSPENDED:
                if log.wanted and log.durable_seq <= durable_seq:
                    self._take_over(session_id, "resumed")
            elif not state.is_end and owner_is_dead:
                self._take_over(session_id, "gateway_crash")

    async def _lease(self) -> None:
        live = [log for log in self._logs.values() if not log.state.is_end]
        if not live:
            return
        async with self._pool.connection() as connection:
            await connection.execute(_LEASE, ([log.session_id for log in live],))
        for log in live:
            if log.owner_id is not None and log.owner_id != self._instance_id:
                await self._watch(log.session_id, log.owner_id)

    def _take_over(self, session_id: UUID, reason: str) -> None:
        if session_id in self._adopting:
            return
        task = asyncio.create_task(self._adopt_one(session_id, reason), name=f"adopt {session_id}")
        self._adopting[session_id] = task
        task.add_done_callback(lambda _: self._adopting.pop(session_id, None))

    async def _adopt_one(self, session_id: UUID, reason: str) -> None:
        try:
            await self._adopt(session_id, reason)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.info("session %s cannot be taken over yet: %s", session_id, exc)
        log = self._logs.get(session_id)
        if log is not None:
            log.wake()
