"""The journal: one writer per process that makes what all its sessions have pending durable.

Group commit: a flush writes everything pending in one transaction; the next one starts when it has
ended. Under load flushes grow instead of queueing. Every session's rows pass the fence: the
``session_fence`` update lets a batch through only if this process still owns the session and the
batch follows directly on what is durable.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg import errors as pg

from streaming.conf import conf
from streaming.core.attribution import attribute_end
from streaming.core.state import SessionState
from streaming.errors import GatewayError, SessionLost
from streaming.fleet.gateway_lock import ADVISORY_CLASS
from streaming.metrics import session_ended
from streaming.metrics.catalogue import JOURNAL_FLUSH, JOURNAL_SESSIONS
from streaming.runtime import pg_arrays
from streaming.runtime.pg_arrays import bytea_array, int8_array, uuid_array
from streaming.runtime.records import STATEMENTS, Record, RecordKind, now
from streaming.runtime.token_log import Batch, SessionLog, terminal_bytes

logger = logging.getLogger(__name__)

FLUSH = """
WITH batch AS (
    SELECT * FROM unnest(
        %b::uuid[], %b::int8[], %b::int8[], %b::int8[], %b::int8[],
        %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::int8[],
        %b::int8[], %b::int8[], %b::int8[], %b::int8[]
    ) WITH ORDINALITY AS b(session_id, epoch, attempt, first_seq, last_seq,
        token_ids, text, text_ends, digest, terminal, ends_surely, sent, taken, cursor, acked, place)
), fenced AS (
    UPDATE session_fence f
    SET durable_seq = b.last_seq,
        sent_seq = greatest(f.sent_seq, b.sent), taken_seq = greatest(f.taken_seq, b.taken),
        cursor_seq = greatest(f.cursor_seq, b.cursor), acked_seq = greatest(f.acked_seq, b.acked)
    FROM batch b
    WHERE f.session_id = b.session_id AND f.epoch = b.epoch AND f.durable_seq = b.first_seq - 1
    RETURNING b.place, f.session_id, f.stop_requested, f.expires_on
), written AS (
    INSERT INTO streaming_tokencheckpoint (session_id, epoch, attempt, first_seq, last_seq,
        token_ids, text, text_ends, digest, terminal, ends_surely, created_at, expires_on)
    SELECT b.session_id, b.epoch, b.attempt, b.first_seq, b.last_seq,
        b.token_ids, b.text, b.text_ends, b.digest, b.terminal, b.ends_surely = 1, now(),
        fenced.expires_on
    FROM batch b JOIN fenced USING (session_id)
    WHERE b.last_seq >= b.first_seq
)
SELECT place, stop_requested FROM fenced
"""
Passed = dict[int, bool]
"""Of the batches that the fence has let through, by their place in the flush, from 1: whether somebody
asks their session to stop. (A session's id would be made and compared anew for each row.)"""

FLUSH_SECONDS = 15.0
RETRY_SECONDS = 0.2
# A flush costs about as much as ten of its rows, so under load they are not begun more often than
# this: a token waits 8 ms at most for others to join it, and not at all when there are none. Where
# hundreds of sessions write at once each of them adds to it what its token costs this process, up to
# a length that no reader notices: then the process has time for its tokens instead of for flushes.
FLUSH_INTERVAL = 0.008
ROW_INTERVAL = 0.000_075
LONGEST_INTERVAL = 0.04
# With nothing to write the connection is looked at this often: our lock is lost with it.
IDLE_SECONDS = 1.0
# The server gives up a vanished connection, and with it our lock, after about 5 s.
TCP_OPTIONS = "-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3 -c tcp_user_timeout=5000"

# The database is away, or refuses writes as such; everything else is about what we sent.
UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.ReadOnlySqlTransaction,
    OSError,
    TimeoutError,
)
# psycopg counts them as operational, but they are about the size or depth of what we sent.
OVER_A_LIMIT = "54"


class Poisoned(GatewayError):
    """This answer cannot be stored, so it cannot be shown."""

    code = "journal_refused"
    http_status = 500


class Journal:
    """Writes what ``SessionLog`` objects have pending. Owns its direct connection, which holds the
    advisory lock of this process (see ``runtime.instance``)."""

    def __init__(
        self,
        dsn: str,
        instance_id: int,
        flushed: Callable[[Sequence[SessionLog]], None] = lambda logs: None,
    ) -> None:
        self._dsn = dsn
        self._flushed = flushed
        self._instance_id = instance_id
        self._dirty: dict[SessionLog, None] = {}
        self._dirty_since = 0.0
        """Loop time since which there has been something in ``_dirty``."""
        self._flushing_since: float | None = None
        """The same of what is being written now."""
        self._flushing = 0
        self._wake = asyncio.Event()
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._down_since: float | None = None
        self._back_at = -math.inf
        self.flushes = 0
        self.rows = 0

    def __repr__(self) -> str:
        state = "down" if self._down_since is not None else "up"
        return f"<Journal {state}: {len(self._dirty)} sessions pending, {self.flushes} flushes>"

    @property
    def down_seconds(self) -> float:
        """For how long nothing could be written; 0 while all is well."""
        if self._down_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._down_since

    @property
    def back_seconds(self) -> float:
        """For how long it has had its database again; infinite if it never lost it."""
        return asyncio.get_running_loop().time() - self._back_at

    @property
    def lag_seconds(self) -> float:
        """For how long the oldest pending row has been waiting; 0: nothing is."""
        since = self._flushing_since
        if since is None and self._dirty:
            since = self._dirty_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    @property
    def pending_sessions(self) -> int:
        """How many sessions have something that is not durable yet."""
        return len(self._dirty) + self._flushing

    async def start(self) -> None:
        """Connect, lock and begin to write. Raises ``psycopg.Error`` if the database is away."""
        await self._connect()
        self._task = asyncio.create_task(self._run(), name="journal")

    async def stop(self) -> None:
        """Write what is pending, then let go of connection and lock."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=FLUSH_SECONDS)
            self._task.cancel()
            (outcome,) = await asyncio.gather(self._task, return_exceptions=True)
            if outcome is not None:
                logger.error("the journal could not write all that was pending: %r", outcome)
        await self._disconnect()

    def notify(self, log: SessionLog) -> None:
        """``log`` has something to write."""
        if not self._dirty:
            self._dirty_since = asyncio.get_running_loop().time()
            self._wake.set()
        self._dirty[log] = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_flush = 0.0
        while self._dirty or not self._stopping:
            if not await self._anything_to_write():
                await self._look_at_connection()
                continue
            # At least one turn of the loop, so that all streams that are ready join this flush.
            await asyncio.sleep(max(0.0, next_flush - loop.time()))
            self._wake.clear()
            logs, self._dirty = self._dirty, {}
            next_flush = loop.time() + interval_after(len(logs))
            self._flushing_since, self._flushing = self._dirty_since, len(logs)
            batches = [self._taken(log) for log in logs if log.lost is None and log.has_pending]
            for batch in batches:
                batch.log.in_flight = True
            await self._write_surely(batches)
            self._flushing_since, self._flushing = None, 0
            for batch in batches:
                batch.log.in_flight = False  # also where it was not committed
                if batch.log.lost is None and batch.log.has_pending:
                    self.notify(batch.log)

    async def _anything_to_write(self) -> bool:
        """Wait for it; False after ``IDLE_SECONDS`` without."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _look_at_connection(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                if self._connection is None:
                    raise psycopg.OperationalError("not connected")
                await self._connection.execute("SELECT 1")
        except UNAVAILABLE as exc:
            await self._reconnect([], exc)
        self._down_since = None

    def _taken(self, log: SessionLog) -> Batch:
        try:
            return log.take()
        except UnicodeEncodeError as exc:
            return self._given_up(log, exc)

    async def _write_surely(self, batches: list[Batch]) -> None:
        """Write the batches, however long the database is away. Ends the sessions that can't be."""
        loop = asyncio.get_running_loop()
        while batches:
            began = loop.time()
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    passed = await self._write(batches)
            except (pg.DeadlockDetected, pg.SerializationFailure):
                continue  # rolled back, and nothing is wrong with the connection that holds our lock
            except Exception as exc:  # noqa: BLE001  whatever it is, it must not end the writing
                if not _is_unavailable(exc):
                    await self._isolate(batches, exc)
                    return
                if self._down_since is not None:  # it let us in, but takes no writes yet
                    await asyncio.sleep(RETRY_SECONDS)
                batches = await self._reconnect(batches, exc)
            else:
                JOURNAL_FLUSH.note(loop.time() - began)
                JOURNAL_SESSIONS.note(len(batches))
                self._settle(batches, passed)
                return
        self._down_since = None

    def _settle(self, batches: Sequence[Batch], passed: Passed) -> None:
        self._down_since = None
        self.flushes += 1
        self.rows += len(batches)
        for place, batch in enumerate(batches, 1):
            log = batch.log
            stop_requested = passed.get(place)
            if stop_requested is not None:
                log.committed(batch, stop_requested)
            else:
                logger.warning(
                    "the fence refused a batch", extra={"session_id": str(log.session_id)}
                )
                log.lose(SessionLost())
        self._flushed([batch.log for batch in batches])

    async def _isolate(self, batches: list[Batch], exc: Exception) -> None:
        """Something in the batches is poison: find it by halves, and end only its session."""
        if len(batches) > 1:
            middle = len(batches) // 2
            await self._write_surely(batches[:middle])
            await self._write_surely(batches[middle:])
            return
        log = batches[0].log
        if log.lost is None:  # else not even its end can be stored; the sweeper will find it
            await self._write_surely([self._given_up(log, exc)])

    def _given_up(self, log: SessionLog, exc: Exception) -> Batch:
        """Lose a log that can't be stored; what remains to be written is how its session ended."""
        logger.error(
            "a session's data cannot be stored",
            exc_info=exc,
            extra={"session_id": str(log.session_id)},
        )
        error = Poisoned()
        log.lose(error)
        session_ended(SessionState.FAILED.value)
        at = now()
        blame, evidence = attribute_end(error.code)
        state = SessionState.FAILED.value
        last_words = log.last_words(
            {"state": state, "finish_reason": "", "error": error.as_openai()["error"]}
        )
        last_words.records += (
            Record(
                RecordKind.SESSION_CHANGED,
                {
                    "id": log.session_id,
                    "state": state,
                    "error_code": error.code,
                    "cause": blame.value,
                    "evidence": {**evidence, "refusal": type(exc).__name__},
                    "completion_tokens": log.durable_seq,
                    "ended_at": at,
                },
            ),
            record_event(log.session_id, state, log.durable_seq + 1, at, cause=blame.value),
            Record(
                RecordKind.OUTBOX,
                {
                    "session_id": log.session_id,
                    "kind": "session_ended",
                    "created_at": at,
                    "data": {},
                },
            ),
        )
        return last_words

    async def _write(self, batches: Sequence[Batch]) -> Passed:
        """One transaction."""
        if self._connection is None:
            raise psycopg.OperationalError("not connected")
        if not any(batch.records for batch in batches):
            return await self._write_tokens(batches)
        records: dict[RecordKind, list[dict[str, Any]]] = {kind: [] for kind in RecordKind}
        async with self._connection.transaction():
            created = [
                record.values
                for batch in batches
                for record in batch.records
                if record.kind is RecordKind.SESSION_CREATED
            ]
            if created:
                await self._write_records(RecordKind.SESSION_CREATED, created)
            passed = await self._write_tokens(batches)
            for place, batch in enumerate(batches, 1):
                if place in passed:
                    for kind, values in batch.records:
                        records[kind].append(values)
            for kind, rows in records.items():
                if rows and kind is not RecordKind.SESSION_CREATED:
                    await self._write_records(kind, rows)
        return passed

    async def _write_tokens(self, batches: Sequence[Batch]) -> Passed:
        assert self._connection is not None
        cursor = await self._connection.execute(
            FLUSH,
            (
                uuid_array([batch.log.session_id for batch in batches]),
                int8_array([batch.log.epoch for batch in batches]),
                int8_array([batch.attempt for batch in batches]),
                int8_array([batch.segment.first_seq for batch in batches]),
                int8_array([batch.segment.last_seq for batch in batches]),
                bytea_array([batch.token_ids for batch in batches]),
                bytea_array([batch.text for batch in batches]),
                bytea_array([batch.segment.ends.tobytes() for batch in batches]),
                bytea_array([batch.digest for batch in batches]),
                bytea_array([terminal_bytes(batch.segment.terminal) for batch in batches]),
                int8_array([batch.ends_surely for batch in batches]),
                int8_array([batch.marks.sent for batch in batches]),
                int8_array([batch.marks.taken for batch in batches]),
                int8_array([batch.marks.cursor for batch in batches]),
                int8_array([batch.marks.acked for batch in batches]),
            ),
            binary=True,
        )
        return dict(await cursor.fetchall())

    async def _write_records(self, kind: RecordKind, rows: list[dict[str, Any]]) -> None:
        assert self._connection is not None
        if kind is RecordKind.SESSION_CHANGED:
            rows = _merged(rows)
        await self._connection.execute(STATEMENTS[kind], (orjson.dumps(rows).decode(),))

    # The connection

    async def _connect(self) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=5,
            application_name=f"unbroken journal {self._instance_id}",
            options=TCP_OPTIONS,
        )
        pg_arrays.register(connection)
        try:
            # After a broken connection the server may hold our lock for a moment longer.
            async with asyncio.timeout(FLUSH_SECONDS):
                await connection.execute(
                    "SELECT pg_advisory_lock(%s, %s)", (ADVISORY_CLASS, self._instance_id)
                )
        except BaseException:
            await connection.close()
            raise
        self._connection = connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _reconnect(self, batches: list[Batch], exc: BaseException) -> list[Batch]:
        """Come back, and tell which batches still have to be written.

        Whether the last transaction was committed is unknown: what is durable is read first.
        """
        loop = asyncio.get_running_loop()
        if self._down_since is None:
            self._down_since = loop.time()
            logger.error("the journal lost its database: %s", exc)
        while True:
            await self._disconnect()
            try:
                await self._connect()
                remaining = await self._reconciled(batches)
            except UNAVAILABLE as again:
                nothing_to_write = not (batches or self._dirty)
                if self._stopping and (nothing_to_write or self.down_seconds > FLUSH_SECONDS):
                    raise
                logger.info("the journal still has no database: %s", again)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._back_at = loop.time()
            logger.warning("the journal has its database back after %.1f s", self.down_seconds)
            return remaining

    async def _reconciled(self, batches: list[Batch]) -> list[Batch]:
        """Settle the batches that turn out to be durable; return the others."""
        assert self._connection is not None
        cursor = await self._connection.execute(
            "SELECT session_id, epoch, durable_seq, stop_requested FROM session_fence WHERE session_id = ANY(%s)",
            ([batch.log.session_id for batch in batches],),
        )
        found = {row[0]: row[1:] for row in await cursor.fetchall()}
        remaining = []
        for batch in batches:
            log, segment = batch.log, batch.segment
            epoch, durable, stop = found.get(log.session_id, (log.epoch, 0, False))
            written = segment.last_seq >= segment.first_seq and durable == segment.last_seq
            if epoch == log.epoch and (written or await self._records_are_there(batch)):
                log.committed(batch, stop)
            else:
                remaining.append(batch)
        return remaining

    async def _records_are_there(self, batch: Batch) -> bool:
        """Whether a batch without tokens was committed: its time-line events say so."""
        assert self._connection is not None
        if batch.segment.last_seq >= batch.segment.first_seq:
            return False
        for kind, values in batch.records:
            if kind is RecordKind.SESSION_CREATED:
                query = "SELECT 1 FROM session_fence WHERE session_id = %s"
                arguments: tuple[Any, ...] = (values["id"],)
            elif kind is RecordKind.ATTEMPT_STARTED:
                query = "SELECT 1 FROM streaming_attempt WHERE session_id = %s AND number = %s"
                arguments = (values["session_id"], values["number"])
            elif kind is RecordKind.EVENT:
                query = "SELECT 1 FROM streaming_sessionevent WHERE session_id = %s AND at = %s AND kind = %s"
                arguments = (values["session_id"], values["at"], values["kind"])
            else:
                continue  # updates may be repeated
            cursor = await self._connection.execute(query, arguments)
            return await cursor.fetchone() is not None
        return False


def interval_after(sessions: int) -> float:
    """Seconds from the beginning of a flush of so many sessions to the next one."""
    return min(FLUSH_INTERVAL + sessions * ROW_INTERVAL, LONGEST_INTERVAL)


def _is_unavailable(exc: Exception) -> bool:
    """Whether a failed flush says something about the database rather than about its content."""
    if isinstance(exc, psycopg.Error) and (exc.sqlstate or "").startswith(OVER_A_LIMIT):
        return False
    return isinstance(exc, UNAVAILABLE)


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a session: an UPDATE … FROM takes only one of several rows that match."""
    merged: dict[Any, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["id"], {}).update(row)
    return list(merged.values())


def record_event(session_id: UUID, kind: str, seq: int, at: Any, **data: Any) -> Record:
    """A line of the session's time line."""
    return Record(
        RecordKind.EVENT,
        {"session_id": session_id, "at": at, "kind": kind, "seq": seq, "data": data},
    )


def down_too_long(journal: Journal) -> bool:
    """Whether sessions must be told that nothing can be written."""
    seconds = journal.down_seconds
    return seconds > 0 and seconds > conf().journal_down_seconds
