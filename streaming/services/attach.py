"""Attaching a reader to a session, wherever the session is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout

from streaming.conf import conf
from streaming.core.connection_health import Band
from streaming.core.delivery import Marks
from streaming.core.levels import Level
from streaming.core.state import SessionState
from streaming.errors import (
    CursorBeyondLog,
    JournalUnavailable,
    NotFound,
    SessionLost,
    SessionPurged,
)
from streaming.runtime.adoption import StoredSession, stored_session
from streaming.runtime.follower import RemoteLog
from streaming.runtime.gateway import Gateway
from streaming.runtime.journal import down_too_long
from streaming.runtime.live import ControlEvent, LiveSession, Principal
from streaming.runtime.log_reader import slice_from_database
from streaming.runtime.reader import Reader, Socket
from streaming.runtime.records import session_changed
from streaming.runtime.token_log import LogSlice, Segment, SessionLog
from streaming.runtime.visits import Visit

logger = logging.getLogger(__name__)

Push = Callable[[int, str], bool]
"""Sends tokens up to a seq, and notes that; False, and nothing is sent, where it would have to wait."""

MOST_HELD = 256
"""Tokens that are held back at most: whoever reads from far behind is not slowed down."""
LAST_LOOKS = (0.01, 0.1, 0.5, 1.0)
"""Seconds between the looks at the socket of a reader that has ended or left."""


class Attachment:
    """A reader on a session: live here, live elsewhere, suspended, or ended."""

    def __init__(self, gateway: Gateway, session_id: UUID, reader: Reader) -> None:
        self._gateway = gateway
        self.session_id = session_id
        self.reader = reader
        self._remote: RemoteLog | None = None
        self._controls_of: LiveSession | None = None
        self._controls_told = 0
        #: For how many seconds ordinary tokens may be held back, so that they travel together.
        self.window = 0.0
        self._gave_at = float("-inf")
        #: Whether it has been given everything, the end included.
        self.is_whole = False
        #: Set when the reader is told to come back on another connection.
        self.sent_away = False
        #: Set when it is told the error that has suspended the session.
        self.told_error = False

    @property
    def live(self) -> LiveSession | None:
        """The session, if this process owns it at the moment."""
        live = self._gateway.sessions.get(self.session_id)
        return live if live is not None and live.log.lost is None else None

    @property
    def gateway_is_draining(self) -> bool:
        return self._gateway.draining

    @property
    def state(self) -> SessionState | None:
        live = self.live
        if live is not None:
            return live.state
        return self._remote.state if self._remote is not None else None

    def level(self, otherwise: Level) -> Level:
        """Of the session, where it is live here."""
        live = self.live
        return otherwise if live is None else live.principal.level

    def due_controls(self) -> list[ControlEvent]:
        """What has happened behind the token that the reader was sent last; each is given once.

        To be asked before each piece is sent, and after it. What lies behind earlier tokens
        happened before this reader came.
        """
        controls, cursor = self._controls(), self.reader.cursor
        due: list[ControlEvent] = []
        while self._controls_told < len(controls):
            control = controls[self._controls_told]
            if control.seq > cursor:
                break
            self._controls_told += 1
            if control.seq == cursor:
                due.append(control)
                self._gave_at = float("-inf")  # what follows a seam goes at once, as the first does
        return due

    @property
    def is_caught_up(self) -> bool:
        """Whether the reader was sent all that is durable, as far as is known here."""
        log = self._log()
        last = log.last_seq if isinstance(log, SessionLog) else log.durable_seq
        return self.reader.cursor >= last

    def _controls(self) -> list[ControlEvent]:
        """Those of the session that was seen last: ``_log`` sees, once for each piece."""
        if self._controls_of is None:
            self._see(self.live)
        return self._controls_of.controls if self._controls_of is not None else []

    def _see(self, live: LiveSession | None) -> None:
        if live is not self._controls_of:
            self._controls_of, self._controls_told = live, 0

    def _next_control(self, seq: int) -> int | None:
        """The token beyond ``seq`` behind which something has happened: pieces end there."""
        for control in islice(self._controls(), self._controls_told, None):
            if control.seq > seq:
                return control.seq
        return None

    async def pieces(self, push: Push | None = None) -> AsyncGenerator[LogSlice | None]:
        """Everything durable after the reader's cursor, as it becomes durable, to the terminal record.

        Ordinary tokens that ``push`` has sent to a reader that waits for them are not yielded: to
        wake its task for each costs as much as all else that is done for it.

        No piece goes on beyond a token behind which there is a control event: see ``due_controls``.
        None is yielded for news of another kind, before the tokens behind it. Raises ``JournalUnavailable``,
        ``SessionPurged``, what ended the log when it cannot be read on anywhere, and what has suspended
        the session meanwhile.
        """
        gateway = self._gateway
        loop = asyncio.get_running_loop()
        seq = self.reader.cursor
        while True:
            log = self._log()
            if self.window and log.durable_seq > seq:
                log = await self._held(seq)
            if log.durable_seq > seq and (piece := await self._piece(log, seq)) is not None:
                self._gave_at = loop.time()
                yield piece
                seq = piece.last_seq
                if piece.terminal is not None:
                    self.is_whole = True
                    return
                continue
            if isinstance(log, SessionLog) and log.lost is not None:
                if not isinstance(log.lost, SessionLost):
                    raise log.lost
                # Somebody else owns it now: follow it there.
                continue
            if isinstance(log, RemoteLog) and (error := log.error_for(self.reader)) is not None:
                self.told_error = True
                raise error
            if down_too_long(gateway.journal):
                raise JournalUnavailable
            # The gateway wakes us now and then, whatever happens.
            if push is not None and isinstance(log, SessionLog):
                await log.changed(partial(self._pushed, push))
                seq = self.reader.cursor
            else:
                await log.changed()
            if log.durable_seq <= seq or self._controls_told < len(self._controls()):
                yield None

    def _pushed(self, push: Push, segment: Segment) -> bool:
        """Whether what has just become durable is all that the reader lacks, and was sent."""
        live = self._controls_of
        if (
            segment.first_seq != self.reader.cursor + 1
            or segment.last_seq < segment.first_seq
            or segment.terminal is not None
            or live is None
            or live.state is SessionState.RECOVERING
            or self._controls_told < len(live.controls)
            or self.window
            or not push(segment.last_seq, segment.text)
        ):
            return False
        self._gave_at = asyncio.get_running_loop().time()
        return True

    async def _piece(self, log: SessionLog | RemoteLog, seq: int) -> LogSlice | None:
        """What of ``log`` follows ``seq``; None: nothing yet. Raises ``SessionPurged``."""
        upto = self._next_control(seq)
        try:
            return log.slice_after(seq, upto)
        except LookupError:
            # What happens while it is read happens behind all that is durable by now.
            upto = log.durable_seq if upto is None else min(upto, log.durable_seq)
            piece = await slice_from_database(self._gateway.pool, self.session_id, seq, upto)
            if piece is None:
                raise SessionPurged from None
            return piece

    async def _held(self, seq: int) -> SessionLog | RemoteLog:
        """Wait as long as what is durable beyond ``seq`` may wait; the log as it then is.

        It is not taken out of the log meanwhile: what comes is a longer piece. The first token
        never waits, nor does anything for longer than ``window`` after the piece before.
        """
        loop = asyncio.get_running_loop()
        while True:
            log = self._log()
            due = self._gave_at + self.window
            if loop.time() >= due or self._may_not_wait(log, seq):
                return log
            changed = log.changed()
            timer = loop.call_at(due, _settle, changed)
            try:
                await changed
            finally:
                timer.cancel()

    def _may_not_wait(self, log: SessionLog | RemoteLog, seq: int) -> bool:
        """Whether there is more than ordinary tokens, or too many of them."""
        return (
            self._controls_told < len(self._controls())
            or log.ends
            or log.lost is not None
            or self.state is SessionState.RECOVERING
            or self.gateway_is_draining
            or log.durable_seq - seq > MOST_HELD
        )

    def _log(self) -> SessionLog | RemoteLog:
        """The log as it can be read at the moment: here, or from afar."""
        live = self._gateway.sessions.get(self.session_id)
        if live is not None and not isinstance(live.log.lost, SessionLost):
            self._see(live)
            self.reader.sees(live.log.epoch)
            self._stop_following()
            live.join(self.reader)
            return live.log
        self._see(None)
        if self._remote is None:
            self._remote = self._gateway.follower.follow(self.session_id, self.reader)
        return self._remote

    def _stop_following(self) -> None:
        if self._remote is not None:
            self._remote = None
            self._gateway.follower.leave(self.session_id, self.reader)

    def note_health(self) -> None:
        """The connection of the reader has become worse, or is over: its session remembers that."""
        score, live = self.reader.health, self.live
        if score is None:
            return
        if live is not None and not live.state.is_end:
            if live.health is None or score < live.health:
                live.health = score  # stored with the session's end, at the latest
                if score < Band.GOOD.floor:
                    live.log.note(session_changed(self.session_id, health=score))
        elif score < Band.GOOD.floor:  # elsewhere, or over: only what somebody will look for
            self._gateway.spawn(_store_health(self._gateway, self.session_id, score), "health")

    def expect_back(self) -> None:
        """The reader is being sent to another connection."""
        self.sent_away = True
        if (live := self.live) is not None:
            live.expect_back()

    def leave(self) -> None:
        """The reader is gone."""
        self._stop_following()
        live = self._gateway.sessions.get(self.session_id)
        if live is not None:
            live.leave(self.reader)
            if self.sent_away:
                live.expect_back()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _store_health(gateway: Gateway, session_id: UUID, score: int) -> None:
    try:
        async with gateway.pool.connection() as connection:
            await connection.execute(
                "UPDATE streaming_streamsession SET health = %s"
                " WHERE id = %s AND coalesce(health, 101) > %s",
                (score, session_id, score),
            )
    except (psycopg.Error, PoolTimeout) as exc:
        logger.warning("the health of a connection was not noted: %s", exc)


async def find(gateway: Gateway, principal: Principal, session_id: UUID) -> StoredSession:
    """The principal's session. Raises ``NotFound``: another's is told from none by nothing."""
    stored = await stored_session(gateway.pool, session_id)
    if stored is None or not stored.belongs_to(principal):
        raise NotFound("There is no such session.")
    return stored


def check_cursor(stored: StoredSession, cursor: int) -> bool:
    """Whether there is anything to read beyond ``cursor``; False: only the reader's own end.

    Raises ``SessionPurged`` or ``CursorBeyondLog``. The terminal record has a seq of its own, so
    a reader that has the last token but not the end is told apart from one that has all.
    """
    if stored.purged_at is not None:
        raise SessionPurged
    if cursor > stored.durable_seq:
        raise CursorBeyondLog(f"The log of this session ends at {stored.durable_seq}.")
    return not (stored.ended and cursor == stored.durable_seq)


async def note_return(gateway: Gateway, stored: StoredSession, cursor: int) -> None:
    """A reader says by its cursor what it has, and so also what it has not.

    Where more counted as delivered, and only sockets spoke for it, it counts no longer
    (``Marks.deny``); it will be sent again. What the cursor proves is stored as the reader's.
    """
    live = gateway.sessions.get(stored.id)
    if live is not None:
        live.deny_delivery(cursor)
    if cursor < stored.delivered_seq:
        marks = Marks(sent=cursor, cursor=cursor)
        await gateway.store_delivered(stored.id, marks, denied=cursor)


async def note_end(gateway: Gateway, stored: StoredSession) -> None:
    """A reader has come back with the cursor of the end: it has everything."""
    end = stored.durable_seq
    await gateway.store_delivered(stored.id, Marks(sent=end, cursor=end))


def note_sent(gateway: Gateway, session_id: UUID, seq: int, socket: Socket | None) -> None:
    """All up to ``seq`` was written to somebody who follows no events: it counts as any reader's."""
    now = asyncio.get_running_loop().time()
    reader = Reader(0, now, socket)
    reader.sent(seq, now)
    gateway.spawn(_settle_delivery(gateway, session_id, reader), "delivered")


@contextmanager
def attached(
    gateway: Gateway,
    session_id: UUID,
    cursor: int,
    socket: Socket | None,
    protocol: str,
    *,
    polls: bool = False,
) -> Iterator[Attachment]:
    """A reader, for the time of the block. Its coming and going enter the session's time line.

    ``polls``: it comes back by itself again and again, which is one visit (``PollingReaders``).
    """
    loop = asyncio.get_running_loop()
    reader = Reader(cursor, loop.time(), socket)
    attachment = Attachment(gateway, session_id, reader)
    live = attachment.live
    if cursor and not polls:
        reader.returns = 1 if live is None else live.returned(loop.time())
    if live is not None:
        live.join(reader)
    if polls:
        visit = gateway.polling.visit(session_id, cursor, protocol)
    else:
        visit = Visit(gateway, session_id, cursor, protocol)
    try:
        yield attachment
    finally:
        if polls:
            gateway.polling.polled(session_id, reader.cursor, is_whole=attachment.is_whole)
        elif not attachment.is_whole:
            visit.left(reader.cursor, _ending(attachment, socket))
        attachment.note_health()
        attachment.leave()
        gateway.spawn(_settle_delivery(gateway, session_id, reader), "delivered")


def _ending(attachment: Attachment, socket: Socket | None) -> str:
    """How a reader has left that has not been given everything."""
    if attachment.sent_away:
        return "sent_away"
    if attachment.told_error:
        return "told_error"
    # One that is still there has unsubscribed, or has been told another error.
    return (socket.ended_by if socket is not None else "") or "ended"


async def _settle_delivery(gateway: Gateway, session_id: UUID, reader: Reader) -> None:
    """Store what the reader has provably received, once its last acknowledgements are in."""
    for pause in LAST_LOOKS:
        if reader.look().delivered >= reader.cursor:
            break
        await asyncio.sleep(pause)
    reader.look()
    live = gateway.sessions.get(session_id)
    if live is not None:
        live.note_delivered(reader.marks)
    if reader.marks.sent:
        # Nobody else knows it, and the reader pays for no more than what is stored.
        await gateway.store_delivered(
            session_id, reader.marks.since(reader.stored), patience=conf().journal_down_seconds
        )
