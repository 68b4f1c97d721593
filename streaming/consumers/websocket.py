"""``/ws/chat/``: several sessions over one socket.

Who asks is settled in ``socket_entry``. ``receive`` only routes: each session is followed by a task
of its own, so that stop, acks and the disconnect are seen at once. Every protocol error is answered,
none is dropped. The messages are written down in ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID

import psycopg
from channels.generic.websocket import AsyncWebsocketConsumer

from streaming.conf import conf
from streaming.consumers.follow import Follow
from streaming.consumers.socket_entry import RESTARTING, EntrySocket
from streaming.consumers.socket_messages import (
    NO_CHANNEL_LAYER,
    Message,
    now_text,
    parsed,
    seq_of,
    session_id_of,
    spelled,
    text_of,
)
from streaming.consumers.wishes import update
from streaming.core.chat import ChatRequest
from streaming.core.levels import Level
from streaming.errors import CursorBeyondLog, GatewayError, InvalidRequest
from streaming.metrics import connection_ended
from streaming.metrics.catalogue import WEBSOCKETS
from streaming.runtime.live import Principal
from streaming.runtime.quality import ConnectionQuality
from streaming.services import sessions
from streaming.services.attach import check_cursor, find, note_end, note_return
from streaming.services.auth import named
from streaming.services.chat_requests import read_chat_request
from streaming.services.embed_tokens import apply_grant
from streaming.services.quality import with_quality

logger = logging.getLogger(__name__)

MAX_SESSIONS = 32
WISHES = {"heartbeat", "coalesce"}
"""Those that the query may have."""


class ChatSocket(EntrySocket):
    """Client: ``auth``, ``start``, ``resume``, ``ack``, ``stop``, ``wish``, ``ping``. Server: ``ready``,
    ``session``, ``token``, ``recovering``, ``recovered``, ``done``, ``error``, ``quality``, ``ping``,
    ``pong``."""

    _born = 0.0
    _starting = 0
    """Sessions that have yet to begin."""
    _moved = False
    """Whether it was told to come back on another connection."""
    _tells_quality = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._following: dict[UUID, Follow] = {}

    async def connect(self) -> None:
        self._quality = ConnectionQuality(self.scope.get("extensions", {}).get("unbroken.socket"))
        await super().connect()

    def _read_query(self, query: dict[str, list[str]]) -> None:
        self._tells_quality = query.get("quality") == ["1"]
        update(self._quality.wishes, {name: query[name][-1] for name in WISHES & set(query)})

    def _entered(self) -> None:
        self._born = asyncio.get_running_loop().time()
        WEBSOCKETS.value += 1
        self._spawn(self._heartbeat())

    async def disconnect(self, code: int) -> None:
        if self._principal is not None:
            WEBSOCKETS.value -= 1
            self._quality.closed()
            end: Literal["whole", "moved", "early"] = "early" if self._following else "whole"
            lifetime = asyncio.get_running_loop().time() - self._born
            connection_ended("websocket", "moved" if self._moved else end, lifetime)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        logger.info("client left", extra={"code": code})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._principal is None:
            await self._receive_first(text_data, bytes_data)
            return
        message: Any = None
        try:
            message = parsed(text_data, bytes_data)
            kind = message.get("type")
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                known = ", ".join(self._handlers)
                raise InvalidRequest(f"type must be one of {known}.", param="type")
            await handler(self, message)
        except GatewayError as exc:
            await self._tell_error(exc, message)
        except psycopg.OperationalError as exc:
            await self._tell_error(self._without_database(exc), message)
        except Exception as exc:  # noqa: BLE001  the edge: the client gets an answer, the log the cause
            await self._tell_error(self._unforeseen(exc), message)

    # What clients ask for

    async def _start(self, message: Message) -> None:
        """Begin an answer: ``{"type": "start", "ref": …, "request": {chat request}}``."""
        principal = await self._entitled()
        self._check_room()
        body = apply_grant(principal, spelled(message.get("request"), "request"))
        chat = read_chat_request(body)
        principal = with_quality(principal, text_of(message, "level"), text_of(message, "variant"))
        rehearsal = sessions.parse_rehearsal(text_of(message, "rehearse"), principal)
        # Its own task: it may have to wait for its turn, acks and stops of others must not.
        self._starting += 1
        self._spawn(self._start_one(principal, chat, body, rehearsal, message))

    async def _start_one(
        self,
        principal: Principal,
        chat: ChatRequest,
        body: bytes,
        rehearsal: list[int],
        message: Message,
    ) -> None:
        try:
            session = await sessions.create_session(
                self._gateway,
                principal,
                chat,
                body=body,
                request_id=self._request_id,
                protocol="websocket",
                rehearsal=rehearsal,
            )
        except GatewayError as exc:
            await self._tell_error(exc, message)
        except psycopg.OperationalError as exc:
            await self._tell_error(self._without_database(exc), message)
        except Exception as exc:  # noqa: BLE001  the edge of the task
            await self._tell_error(self._unforeseen(exc), message)
        else:
            ref, level = message.get("ref"), session.principal.level
            self._follow(session.id, session.reference, 0, ref, session.log.epoch, level)
        finally:
            self._starting -= 1

    async def _resume(self, message: Message) -> None:
        """Follow a session from a cursor: ``{"type": "resume", "session": id, "seq": n}``."""
        await self._entitled()
        self._check_room()
        session_id = session_id_of(message)
        cursor = seq_of(message)
        stored = await find(self._gateway, self._own(message), session_id)
        if session_id in self._following:
            raise InvalidRequest("This socket follows the session already.", param="session")
        if not check_cursor(stored, cursor):
            await note_end(self._gateway, stored)
            await self._send({"type": "complete", "session": str(session_id), "seq": cursor})
            return
        await note_return(self._gateway, stored, cursor)
        level = Level(stored.level or Level.STANDARD)
        self._follow(session_id, stored.reference, cursor, message.get("ref"), stored.epoch, level)

    async def _ack(self, message: Message) -> None:
        session_id, seq = session_id_of(message), seq_of(message)
        follow = self._following.get(session_id)
        if follow is not None and follow.attachment is not None:
            reader = follow.attachment.reader
            if seq > reader.cursor:
                raise CursorBeyondLog(f"This socket was sent the tokens up to {reader.cursor}.")
            reader.acked(seq)
            follow.note_round_trip(seq)
            live = self._gateway.sessions.get(session_id)
            if live is not None:
                live.note_delivered(reader.marks)
            return
        await sessions.acknowledge(self._gateway, self._own(message), session_id, seq)

    async def _stop(self, message: Message) -> None:
        await self._entitled()
        # Its own task: a stop may have to wait for another process, acks must not.
        self._spawn(self._stop_one(session_id_of(message), self._own(message), message))

    async def _stop_one(self, session_id: UUID, principal: Principal, message: Message) -> None:
        try:
            await sessions.stop_session(self._gateway, principal, session_id)
        except GatewayError as exc:
            await self._tell_error(exc, message, session_id)
        except Exception as exc:  # noqa: BLE001  the edge of the task
            await self._tell_error(self._unforeseen(exc), message, session_id)

    async def _wish(self, message: Message) -> None:
        """What the client wants of its connection: ``{"type": "wish", "heartbeat"?, "coalesce"?, …}``."""
        wanted = message.get("quality", self._tells_quality)
        if not isinstance(wanted, bool):
            raise InvalidRequest("quality must be true or false.", param="quality")
        update(self._quality.wishes, message)
        self._tells_quality = wanted
        await self._heed_quality()

    async def _heed_quality(self) -> None:
        """The connection is better or worse, or wanted otherwise: what is sent on it follows."""
        for follow in self._following.values():
            follow.heed_quality()
        if self._tells_quality:
            await self._send({"type": "quality", **self._quality.told()})

    async def _ping(self, message: Message) -> None:
        await self._send({"type": "pong", "server_time": now_text()})

    _handlers: dict[str, Callable[[ChatSocket, Message], Awaitable[None]]] = {
        "auth": EntrySocket._auth,
        "start": _start,
        "resume": _resume,
        "ack": _ack,
        "stop": _stop,
        "wish": _wish,
        "ping": _ping,
    }

    def _own(self, message: Message) -> Principal:
        """The principal, as the end user that the client's backend speaks for."""
        return named(self._authenticated, text_of(message, "user") or None)

    def _check_room(self) -> None:
        if len(self._following) + self._starting >= MAX_SESSIONS:
            raise InvalidRequest(f"One socket follows at most {MAX_SESSIONS} sessions.")

    # Following

    def _follow(
        self, session_id: UUID, reference: str, cursor: int, ref: Any, epoch: int, level: Level
    ) -> None:
        follow = Follow(self, self._gateway, session_id, reference, cursor, ref, epoch, level)
        self._following[session_id] = follow
        task = self._spawn(follow.run())
        task.add_done_callback(lambda _: self._following.pop(session_id, None))

    async def _heartbeat(self) -> None:
        """A ping whenever nothing else was sent for the interval; and leaving when we must.

        The quality of the connection is looked at here too, for all that is followed on it.
        """
        loop = asyncio.get_running_loop()
        born = self._sent_at = loop.time()
        quality = self._quality
        quality.level = self._authenticated.level
        quality.look((), born)
        if self._tells_quality:
            await self._heed_quality()
        while True:
            await asyncio.sleep(0.1 if self._gateway.draining else min(quality.heartbeat, 0.5))
            age = conf().max_connection_age
            if self._gateway.draining or (age and loop.time() - born > age):
                for follow in self._following.values():
                    if follow.attachment is not None:
                        follow.attachment.expect_back()
                self._moved = True
                await self.close(RESTARTING)
                return
            attachments = [follow.attachment for follow in self._following.values()]
            if quality.look([a.reader for a in attachments if a is not None], loop.time()):
                await self._heed_quality()
            interval = quality.heartbeat
            if any(follow.recovering for follow in self._following.values()):
                interval = min(interval, conf().recovering_ping_seconds)
            if loop.time() - self._sent_at >= interval:
                await self._send({"type": "ping", "server_time": now_text()})


class UnknownSocket(AsyncWebsocketConsumer):
    """Every other path: refused."""

    channel_layer_alias = NO_CHANNEL_LAYER

    async def connect(self) -> None:
        await self.close()
