"""One gateway process: everything it runs, and its start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import OperationalError
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming import metrics
from streaming.conf import conf
from streaming.core.delivery import Marks
from streaming.core.nodes import parse_engine_nodes
from streaming.core.state import SessionState
from streaming.engines.http import EngineClient, engine_client
from streaming.errors import Overloaded, ShuttingDown
from streaming.fleet.attribution import Attributor
from streaming.fleet.continuations import Continuations
from streaming.fleet.environment import sync_environment_nodes
from streaming.fleet.gateway_lock import LOCKS_BACK_SECONDS, OWN_IS_HELD
from streaming.fleet.nodes import Fleet
from streaming.fleet.suspicion import Suspicion
from streaming.fleet.watch import NEWS, FleetWatch
from streaming.ports import ports
from streaming.runtime import adoption, delivery, instance
from streaming.runtime.allowances import Allowances
from streaming.runtime.bus import Bus
from streaming.runtime.follower import Follower
from streaming.runtime.journal import Journal
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.log_reader import read_logs
from streaming.runtime.measuring import Measuring
from streaming.runtime.moves import Moves
from streaming.runtime.presence import Presence
from streaming.runtime.reclaim import Reclaimer
from streaming.runtime.rule_book import RuleBook
from streaming.runtime.runner import Resumption, StreamRunner
from streaming.runtime.shared import Shared
from streaming.runtime.sweepers import SweeperWatch
from streaming.runtime.token_log import SessionLog
from streaming.runtime.turns import Turns
from streaming.runtime.visits import PollingReaders
from streaming.tracing import stored_contexts

logger = logging.getLogger(__name__)

ORPHAN_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 5.0
WATCH_SECONDS = 3.0
SUSPEND_SECONDS = 5.0
DELIVERY_RETRY_SECONDS = 0.5

POOL_SIZE, UPKEEP_SIZE = 8, 3
"""Connections to the database, besides the journal's."""

SETTLE_SECONDS = 4.0
UNSETTLED = """
SELECT 1 FROM streaming_outboxmessage WHERE handled_at IS NULL AND NOT data ? 'retry_at'
AND created_at < now() - make_interval(secs => %s) LIMIT 1
"""


class Gateway:
    """The running parts of this process. ``start()`` makes the one there is; ``current()`` finds it."""

    def __init__(
        self,
        instance_id: int,
        pool: AsyncConnectionPool,
        upkeep: AsyncConnectionPool,
        client: EngineClient,
    ) -> None:
        self.instance_id = instance_id
        self.pool = pool
        # A crowd of requests that wait for a connection must not keep this process from showing
        # that it lives, from noticing that it has lost a session, or from hearing of the nodes.
        self._upkeep = upkeep
        self.client = client
        self.fleet = Fleet()
        self.watch = FleetWatch(self.fleet, client, upkeep, instance_id, self._tell_all)
        self.reclaimer = Reclaimer(self.fleet, pool)
        self.sweepers = SweeperWatch(upkeep, settings.CELERY_BROKER_URL)
        dsn = settings.DATABASE_DIRECT_URL or settings.DATABASE_URL
        self.journal = Journal(dsn, instance_id, self._hint_at)
        self.sessions: dict[UUID, LiveSession] = {}
        self.bus = Bus(instance_id, self._receive)
        self.continuations = Continuations(self.fleet)
        self.allowances = Allowances(self.sessions, settings.REDIS_URL)
        self.measuring = Measuring(self.sessions, self.journal, self.continuations, pool)
        self.follower = Follower(
            pool, instance_id, self.adopt, self._ask_for_hints, self._delivery_stored
        )
        self.presence = Presence(
            upkeep, lambda: list(self.sessions.values()), self.measuring.count.left
        )
        self.polling = PollingReaders(self)
        self.draining = False
        self.suspicion = Suspicion(self.fleet, self.watch.suspect_mute)
        self.rules = RuleBook(upkeep)
        self.attributor = Attributor(self.fleet, pool, metrics.failover)
        self._shared = Shared(
            fleet=self.fleet,
            watch=self.watch,
            attributor=self.attributor,
            reclaimer=self.reclaimer,
            suspicion=self.suspicion,
            continuations=self.continuations,
            turns=Turns(),
            moves=Moves(),
            journal=self.journal,
            pool=pool,
            rules=self.rules,
        )
        self._adopting: set[UUID] = set()
        self._watchers: dict[UUID, dict[int, float]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<Gateway {self.instance_id}: {len(self.sessions)} sessions, {self.journal!r}>"

    # Sessions

    def admit(self) -> None:
        """Raises ``ShuttingDown`` or ``Overloaded`` when no new session may start here."""
        if self.draining:
            raise ShuttingDown(retry_after=1)
        if len(self.sessions) >= conf().max_streams:
            raise Overloaded(retry_after=1)

    def run(self, session: LiveSession, resumption: Resumption | None = None) -> None:
        """Start the runner of a session that this process owns."""
        runner = StreamRunner(session, self._shared, resumption)
        session.task = asyncio.create_task(runner.run(), name=f"runner {session.reference}")
        # A session that somebody else owns now, or that can't be stored, must leave its engine.
        session.log.on_lost = session.task.cancel
        self.sessions[session.id] = session
        self.measuring.opened(session)
        if resumption is not None:
            self.allowances.taken_over(session)
        session.task.add_done_callback(lambda _: self._forget(session))

    def _forget(self, session: LiveSession) -> None:
        if self.sessions.get(session.id) is session:
            self.measuring.closed(session)
            self.allowances.closed(session)
            del self.sessions[session.id]
        self._watchers.pop(session.id, None)
        session.log.wake()

    async def adopt(
        self, session_ids: Iterable[UUID], reason: str, end: SessionEnd | None = None
    ) -> None:
        """Take sessions over, to go on with them or to end them as ``end`` says.

        Passes over what is somebody else's or has ended. A process that drains only ends.
        """
        wanted = [
            session_id
            for session_id in session_ids
            if session_id not in self.sessions and session_id not in self._adopting
        ]
        if not wanted or (self.draining and end is None):
            return
        self._adopting.update(wanted)
        try:
            async with self.pool.connection() as connection:
                await self._adopt_on(connection, wanted, reason, end)
        finally:
            self._adopting.difference_update(wanted)

    async def _adopt_on(
        self,
        connection: psycopg.AsyncConnection[tuple[Any, ...]],
        session_ids: list[UUID],
        reason: str,
        end: SessionEnd | None,
    ) -> None:
        found = await adoption.read_sessions(connection, session_ids)
        has_died = any(stored.owner_is_dead for stored in found)
        if has_died and not await self._locks_tell(connection):
            found = [replace(stored, owner_is_dead=False) for stored in found]
        # What the caller has seen may be over: another process was faster.
        ends = {stored.id: stored.end_now(end) for stored in found}
        takeable = [
            stored
            for stored in found
            if stored.may_be_taken_by(self.instance_id) and stored.may_end_as(ends[stored.id])
        ]
        if not takeable:
            return
        won = await adoption.take_over(connection, takeable, self.instance_id, reason)
        logs = await read_logs(connection, list(won))
        traces = {} if ports.tracing is None else await stored_contexts(connection, list(won))
        for stored in takeable:
            if stored.id not in won:
                continue
            for left in won[stored.id].left_behind:
                self.reclaimer.left_behind(left.node_id, stored.id, left.number, left.request_id)
            try:
                restored = adoption.restore(
                    stored, logs[stored.id], won[stored.id], self.journal.notify, ends[stored.id]
                )
            except Exception:  # one bad session must not keep the others from going on
                logger.exception("not restored", extra={"session_id": str(stored.id)})
                continue
            restored[0].trace = traces.get(stored.id, "")
            self.run(*restored)
            logger.info("session taken over: %s", reason, extra={"session_id": str(stored.id)})

    async def _locks_tell(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> bool:
        """Whether a process whose lock is free has died: not while all have lost theirs."""
        if self.journal.back_seconds < LOCKS_BACK_SECONDS:
            return False
        cursor = await connection.execute(OWN_IS_HELD, (self.instance_id,))
        row = await cursor.fetchone()
        return row is not None and bool(row[0])

    async def store_delivered(
        self, session_id: UUID, marks: Marks, denied: int | None = None, *, patience: float = 0.0
    ) -> int | None:
        """Store how far a reader has come; up to where the session then counts as delivered.

        ``denied``: it has come back with this cursor, and has no more. ``patience``: seconds for
        which it is tried again while the database is away. None: it was not stored.
        """
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                async with self.pool.connection() as connection:
                    moved = await delivery.store(connection, session_id, marks, denied)
                break
            except (psycopg.Error, PoolTimeout) as exc:
                if asyncio.get_running_loop().time() >= deadline:
                    logger.warning("a delivered mark was not stored: %s", exc)
                    return None
            await asyncio.sleep(DELIVERY_RETRY_SECONDS)
        if moved is None:
            return None
        # The terminal record has a seq too, and is no token.
        most = moved.delivered if moved.tokens is None else moved.tokens
        self._delivery_stored(session_id, min(moved.former, most), min(moved.delivered, most))
        return moved.delivered

    async def may_have_died_sending(self, session_id: UUID) -> bool:
        """Whether what the session's readers were sent is not known for certain."""
        try:
            async with self.pool.connection() as connection:
                has_died = await delivery.may_have_died_sending(connection, session_id)
                return has_died and await self._locks_tell(connection)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.warning("nobody knows who has died: %s", exc)
            return False

    def _delivery_stored(self, session_id: UUID, former: int, seq: int) -> None:
        self.measuring.delivery_stored(session_id, former, seq)
        self.allowances.delivered(session_id, former, seq)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run a coroutine in the background; it must deal with its own errors."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Hints

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "durable":
            for session_id, seq, *closed in message["sessions"]:
                self.follower.hint(UUID(session_id), seq, *closed)
        elif kind == "watch":
            watchers = self._watchers.setdefault(UUID(message["session"]), {})
            watchers[message["from"]] = asyncio.get_running_loop().time() + WATCH_SECONDS
        elif kind == "stop":
            session = self.sessions.get(UUID(message["session"]))
            if session is not None:
                session.ask_to_end(SessionEnd(SessionState.STOPPED, cause="client_stop"))
        elif kind in NEWS:
            self.watch.receive(message)

    def _tell_all(self, message: dict[str, Any]) -> None:
        self.spawn(self.bus.broadcast(message), "news of a node")

    async def _ask_for_hints(self, session_id: UUID, owner_id: int) -> None:
        await self.bus.send(
            owner_id, {"type": "watch", "session": str(session_id), "from": self.instance_id}
        )

    def _hint_at(self, logs: Sequence[SessionLog]) -> None:
        """One message per watching process and flush."""
        if not self._watchers:
            return
        now = asyncio.get_running_loop().time()
        news: dict[int, list[tuple[str, int, bool]]] = {}
        for log in logs:
            for instance_id, until in self._watchers.get(log.session_id, {}).items():
                if until > now:
                    known = (str(log.session_id), log.durable_seq, log.closed)
                    news.setdefault(instance_id, []).append(known)
        for instance_id, sessions in news.items():
            self.spawn(
                self.bus.send(instance_id, {"type": "durable", "sessions": sessions}), "hint"
            )

    # The process

    async def begin(self) -> None:
        """Start the parts. Raises ``psycopg.Error`` when the database is away."""
        await self.journal.start()
        specs = parse_engine_nodes(",".join(settings.ENGINE_NODES))
        await sync_environment_nodes(self.pool, specs)
        await self.rules.look()
        await self.watch.start()
        self.suspicion.start()
        self.attributor.start()
        self.bus.start()
        self.follower.start()
        self.presence.start()
        self.measuring.start()
        self.allowances.start()
        self.spawn(self._beat_forever(), "heartbeat")
        self.spawn(self.rules.look_forever(), "content rules")
        self.spawn(self._look_for_orphans_forever(), "orphans")
        self.spawn(self._wake_readers_forever(), "look again")

    async def drain(self, timeout: float) -> None:
        """Take no new sessions; wait up to ``timeout`` seconds for the live ones, suspend the rest.

        Readers that can resume see ``draining`` and move to another process at once.
        """
        self.draining = True
        self.allowances.send_all_away()
        self._wake_readers()
        await self._wait_for_runners(timeout)
        for session in list(self.sessions.values()):
            session.ask_to_end(SessionEnd(SessionState.SUSPENDED, cause="gateway_shutdown"))
        await self._wait_for_runners(SUSPEND_SECONDS)

    async def _wait_for_runners(self, timeout: float) -> None:
        tasks = [session.task for session in self.sessions.values() if session.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def stop(self) -> None:
        """Stop everything that ``start`` has started; what is pending is written first."""
        runners = [session.task for session in self.sessions.values() if session.task is not None]
        tasks = [*runners, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.measuring.stop()
        await self.allowances.stop()
        await self.presence.stop()
        await self.follower.stop()
        await self.bus.stop()
        self.continuations.stop()
        await self.suspicion.stop()
        await self.attributor.stop()
        await self.watch.stop()
        for session in self.sessions.values():
            session.log.press()
        await self.journal.stop()
        await self.reclaimer.stop()
        try:
            await instance.retire(self.pool, self.instance_id)
        except (psycopg.Error, PoolTimeout) as exc:
            logger.warning("the end of this process was not noted: %s", exc)
        await self.client.aclose()
        await self.pool.close()
        await self._upkeep.close()

    def _wake_readers(self) -> None:
        """Have every reader look again: at the journal, at the age of its connection, …"""
        for session in self.sessions.values():
            session.log.wake()
        self.follower.wake_all()

    async def _wake_readers_forever(self) -> None:
        """One timer for all: a timeout of its own would cost a reader more than its token."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            self._wake_readers()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(conf().heartbeat_seconds)
            try:
                streams, read_at = self.watch.streams(), self.watch.read_at
                await instance.beat(
                    self._upkeep, self.instance_id, streams, read_at, self.measuring.figures()
                )
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("no heartbeat: %s", exc)

    async def _look_for_orphans_forever(self) -> None:
        unserved: set[UUID] = set()
        while True:
            await asyncio.sleep(ORPHAN_SECONDS)
            try:
                await self.sweepers.check()
                unserved = await self._look_for_orphans(unserved)
                await self._settle_what_waits()
            except (psycopg.Error, PoolTimeout, OperationalError) as exc:
                logger.info("orphans cannot be looked for: %s", exc)
            except Exception:  # one bad session must not end the search for all others
                logger.exception("an orphan could not be taken over")

    async def _settle_what_waits(self) -> None:
        """A session is settled by the worker within seconds; where it isn't, by us."""
        async with self._upkeep.connection() as connection:
            cursor = await connection.execute(UNSETTLED, (SETTLE_SECONDS,))
            if await cursor.fetchone() is None:
                return
        # In a thread of its own: it must not wait for requests of the admin, nor they for it.
        if settled := await sync_to_async(ports.settle, thread_sensitive=False)():
            logger.info("the worker is slow: %d sessions settled here", settled)

    async def _look_for_orphans(self, unserved: set[UUID]) -> set[UUID]:
        """End, suspend or go on with what nobody works on.

        ``unserved``: sessions of this process that had no runner the last time; the answer is the
        same of now. What is among both has lost it: a takeover broke off, or an end was not stored.
        """
        async with self._upkeep.connection() as connection:
            cursor = await connection.execute(adoption.ORPHANS, (conf().grace_seconds,))
            orphans = await cursor.fetchall()
            cursor = await connection.execute(adoption.WANTED)
            wanted = await cursor.fetchall()
            cursor = await connection.execute(adoption.OWNED, (self.instance_id,))
            owned = {row[0] for row in await cursor.fetchall()}
        for session_id, on_disconnect, suspended in orphans:
            end = adoption.end_of_orphan(on_disconnect, suspended)
            await self.adopt([session_id], end.cause if end else "gateway_crash", end)
        for reason in {reason for _, reason in wanted}:
            await self.adopt([pk for pk, why in wanted if why == reason], reason)
        now_unserved = owned - self.sessions.keys() - self._adopting
        await self.adopt(now_unserved & unserved, "runner_lost")
        return now_unserved


_current: Gateway | None = None


async def start() -> Gateway:
    """Start the parts of this process on the running loop. Raises ``psycopg.Error``."""
    global _current
    pool, upkeep = await _open_pool(POOL_SIZE), await _open_pool(UPKEEP_SIZE)
    direct = settings.DATABASE_DIRECT_URL or settings.DATABASE_URL
    gateway = Gateway(await instance.register(direct), pool, upkeep, engine_client())
    await gateway.begin()
    _current = gateway
    return gateway


async def _open_pool(size: int) -> AsyncConnectionPool:
    pool = AsyncConnectionPool(
        settings.DATABASE_URL,
        min_size=1,
        max_size=size,
        timeout=5,
        # Beyond this its pauses between tries double: the database would be back long before us.
        reconnect_timeout=1,
        open=False,
        kwargs={"autocommit": True, "application_name": "unbroken gateway"},
        check=AsyncConnectionPool.check_connection,
    )
    await pool.open()
    return pool


def current() -> Gateway:
    """The gateway of this process. Raises ``ShuttingDown`` before its start."""
    if _current is None:
        raise ShuttingDown("This gateway process has not started yet.", retry_after=1)
    return _current
