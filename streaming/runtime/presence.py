"""Looks after the sessions that this process owns: who reads them, and what was asked of them.

A session without a present reader goes on for its grace period; what then happens is its key's
policy (``on_disconnect``). A reader that is connected but takes nothing for as long, while the log
leads it by more than ``MAX_LEAD`` tokens, counts as absent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.core.state import SessionState
from streaming.errors import SessionLost
from streaming.runtime.live import LiveSession, SessionEnd

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
FENCE_SECONDS = 1.0

_FENCES = """
SELECT session_id, epoch, stop_requested, coalesce(readers_until > now(), false)
FROM session_fence WHERE session_id = ANY(%s)
"""


class Presence:
    """One task over all live sessions of the process.

    ``left`` is told of sessions whose readers did not come back, and since when they are gone.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool,
        sessions: Callable[[], Iterable[LiveSession]],
        left: Callable[[UUID, float], object] = lambda session_id, since: None,
    ) -> None:
        self._pool = pool
        self._sessions = sessions
        self._left = left
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="presence")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at_fences = 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            sessions = [session for session in self._sessions() if not session.state.is_end]
            now = loop.time()
            lonely = [session for session in sessions if self._is_lonely(session, now)]
            try:
                if now - looked_at_fences >= FENCE_SECONDS:
                    looked_at_fences = now
                    read_elsewhere = await self._look_at_fences(sessions)
                elif lonely:
                    read_elsewhere = await self._look_at_fences(lonely)
                else:
                    continue
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("the fences cannot be read: %s", exc)
                continue
            for session in lonely:
                if session.id in read_elsewhere:
                    session.lonely_since = None
                elif session.lonely_since is not None:  # nobody came while we asked
                    self._left(session.id, session.lonely_since)
                    apply_policy(session)

    def _is_lonely(self, session: LiveSession, now: float) -> bool:
        """Whether nobody here has read the session for its whole grace period."""
        present = False
        for reader in session.readers:
            session.note_delivered(reader.look())
            stuck = reader.is_stuck(session.log.durable_seq, now, session.grace)
            present = present or not stuck
        if present:
            session.lonely_since = None
            return False
        if session.lonely_since is None:
            session.lonely_since = now
        return now - session.lonely_since >= session.grace

    async def _look_at_fences(self, sessions: Iterable[LiveSession]) -> set[UUID]:
        """Notice stops and lost ownership; the sessions that have readers in other processes."""
        by_id = {session.id: session for session in sessions}
        if not by_id:
            return set()
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_FENCES, (list(by_id),))
            rows = await cursor.fetchall()
        elsewhere = set()
        for session_id, epoch, stop_requested, readers in rows:
            session = by_id[session_id]
            if epoch != session.log.epoch:
                session.log.lose(SessionLost())
            elif stop_requested:
                session.ask_to_end(SessionEnd(SessionState.STOPPED, cause="client_stop"))
            if readers:
                elsewhere.add(session_id)
        return elsewhere


def apply_policy(session: LiveSession) -> None:
    """Nobody reads the session any more, and its grace is over."""
    policy = session.principal.on_disconnect
    if policy == "cancel":
        session.ask_to_end(SessionEnd(SessionState.CANCELLED, cause="client_gone"))
    elif policy == "suspend":
        session.ask_to_end(SessionEnd(SessionState.SUSPENDED, cause="client_gone"))
