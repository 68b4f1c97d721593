"""``/ws/chat/``: several sessions over one socket.

``receive`` only routes: each session is followed by a task of its own, so that stop, acks and the
disconnect are seen at once. Every protocol error is answered, none is dropped. The messages are
written down in ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qs
from uuid import UUID, uuid4

import orjson
from channels.generic.websocket import AsyncWebsocketConsumer

from streaming.conf import conf
from streaming.consumers.heartbeat import silence
from streaming.consumers.openai_format import usage_of
from streaming.consumers.request import named_end_user
from streaming.consumers.wishes import update
from streaming.core.chat import BadParameter, NotSupported, parse_chat_request
from streaming.core.levels import Level
from streaming.core.state import SessionState
from streaming.errors import (
    AuthenticationFailed,
    CursorBeyondLog,
    GatewayError,
    InvalidRequest,
    NotFound,
    UnsupportedParameter,
    error_from_openai,
)
from streaming.metrics import connection_ended
from streaming.metrics.catalogue import WEBSOCKETS
from streaming.runtime.gateway import Gateway, current
from streaming.runtime.live import Principal
from streaming.runtime.quality import ConnectionQuality
from streaming.runtime.token_log import LogSlice
from streaming.services import sessions
from streaming.services.attach import (
    Attachment,
    attached,
    check_cursor,
    find,
    note_end,
    note_return,
)
from streaming.services.auth import authenticate
from streaming.services.quality import with_quality

logger = logging.getLogger(__name__)

MAX_SESSIONS = 32
SENT_REMEMBERED = 64
WISHES = {"heartbeat", "coalesce"}
"""Those that the query may have."""
RESTARTING = 1012
UNAUTHORISED = 4401

Message = dict[str, Any]


class ChatSocket(AsyncWebsocketConsumer):
    """Client: ``start``, ``resume``, ``ack``, ``stop``, ``wish``, ``ping``. Server: ``session``,
    ``token``, ``recovering``, ``recovered``, ``done``, ``error``, ``quality``, ``ping``, ``pong``."""

    _principal: Principal | None = None

    async def connect(self) -> None:
        self._following: dict[UUID, _Follow] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        self._cloudevents = query.get("envelope") == ["cloudevents"]
        self._tells_quality = query.get("quality") == ["1"]
        self._quality = ConnectionQuality(self.scope.get("extensions", {}).get("unbroken.socket"))
        self._request_id = uuid4().hex
        headers = {name.decode(): value.decode("latin-1") for name, value in self.scope["headers"]}
        await self.accept()
        principal = None
        try:
            self._gateway = current()
            update(self._quality.wishes, {name: query[name][-1] for name in WISHES & set(query)})
            principal = await authenticate(
                self._gateway, headers.get("authorization"), named_end_user(headers)
            )
        except AuthenticationFailed as exc:
            await self._tell_error(exc)
            await self.close(UNAUTHORISED)
            return
        except GatewayError as exc:
            await self._tell_error(exc)
            await self.close(RESTARTING if exc.http_status == 503 else 4400)
            return
        self._principal = principal
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
        logger.info("client left", extra={"request_id": self._request_id, "code": code})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._principal is None:
            return  # it has been told why, and is being closed
        message: Any = None
        try:
            message = _parsed(text_data, bytes_data)
            kind = message.get("type")
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                known = ", ".join(self._handlers)
                raise InvalidRequest(f"type must be one of {known}.", param="type")
            await handler(self, message)
        except GatewayError as exc:
            await self._tell_error(exc, message)
        except Exception as exc:  # noqa: BLE001  the edge: the client gets an answer, the log the cause
            await self._tell_error(self._unforeseen(exc), message)

    # What clients ask for

    async def _start(self, message: Message) -> None:
        """Begin an answer: ``{"type": "start", "ref": …, "request": {chat request}}``."""
        self._check_room()
        body = message.get("request")
        try:
            chat = parse_chat_request(body)
        except NotSupported as exc:
            raise UnsupportedParameter(str(exc), param=exc.param) from exc
        except BadParameter as exc:
            raise InvalidRequest(str(exc), param=exc.param or None) from exc
        principal = with_quality(
            self._authenticated, _text(message, "level"), _text(message, "variant")
        )
        session = await sessions.create_session(
            self._gateway,
            principal,
            chat,
            body=orjson.dumps(body),
            request_id=self._request_id,
            protocol="websocket",
            rehearsal=sessions.parse_rehearsal(_text(message, "rehearse"), principal),
        )
        level = session.principal.level
        self._follow(session.id, session.reference, 0, message.get("ref"), session.log.epoch, level)

    async def _resume(self, message: Message) -> None:
        """Follow a session from a cursor: ``{"type": "resume", "session": id, "seq": n}``."""
        self._check_room()
        session_id = _session_id(message)
        cursor = _seq(message)
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
        session_id, seq = _session_id(message), _seq(message)
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
        # Its own task: a stop may have to wait for another process, acks must not.
        self._spawn(self._stop_one(_session_id(message), self._own(message), message))

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
        await self._send({"type": "pong", "server_time": _now()})

    _handlers: dict[str, Callable[[ChatSocket, Message], Awaitable[None]]] = {
        "start": _start,
        "resume": _resume,
        "ack": _ack,
        "stop": _stop,
        "wish": _wish,
        "ping": _ping,
    }

    def _own(self, message: Message) -> Principal:
        """The principal, as the end user that the client's backend speaks for."""
        user = _text(message, "user")
        principal = self._authenticated
        if user and not principal.end_user:
            return replace(principal, end_user=user)
        return principal

    @property
    def _authenticated(self) -> Principal:
        assert self._principal is not None
        return self._principal

    def _unforeseen(self, cause: Exception) -> GatewayError:
        """Log what nobody foresaw, and tell the client where to find it."""
        logger.error("a message failed", exc_info=cause, extra={"request_id": self._request_id})
        return GatewayError(f"The gateway failed to answer; it is logged as {self._request_id}.")

    def _check_room(self) -> None:
        if len(self._following) >= MAX_SESSIONS:
            raise InvalidRequest(f"One socket follows at most {MAX_SESSIONS} sessions.")

    # Following

    def _follow(
        self, session_id: UUID, reference: str, cursor: int, ref: Any, epoch: int, level: Level
    ) -> None:
        follow = _Follow(self, self._gateway, session_id, reference, cursor, ref, epoch, level)
        self._following[session_id] = follow
        task = self._spawn(follow.run())
        task.add_done_callback(lambda _: self._following.pop(session_id, None))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
                await self._send({"type": "ping", "server_time": _now()})

    async def _send(self, message: Message) -> None:
        if self._cloudevents and message["type"] != "token":
            message = {
                "specversion": "1.0",
                "id": uuid4().hex,
                "source": "/ws/chat/",
                "type": f"unbroken.{message['type']}",
                "time": _now(),
                "datacontenttype": "application/json",
                "data": message,
            }
        async with self._writing:
            self._sent_at = asyncio.get_running_loop().time()
            await self.send(text_data=orjson.dumps(message).decode())

    async def _tell_error(
        self, exc: GatewayError, cause: Any = None, session_id: UUID | None = None
    ) -> None:
        """``cause``: the client's message that it answers, as far as it could be read."""
        message: Message = {"type": "error", **exc.as_openai()}
        if isinstance(cause, dict) and cause.get("ref") is not None:
            message["ref"] = cause["ref"]
        if session_id is not None:
            message["session"] = str(session_id)
        await self._send(message)

    _sent_at = 0.0
    _born = 0.0
    _moved = False
    """Whether it was told to come back on another connection."""


class UnknownSocket(AsyncWebsocketConsumer):
    """Every other path: refused."""

    async def connect(self) -> None:
        await self.close()


class _Follow:
    """One session on one socket."""

    def __init__(
        self,
        socket: ChatSocket,
        gateway: Gateway,
        session_id: UUID,
        reference: str,
        cursor: int,
        ref: Any,
        epoch: int,
        level: Level,
    ) -> None:
        self._socket = socket
        self._gateway = gateway
        self._session_id = session_id
        self._cursor = cursor
        self.recovering = False
        self.attachment: Attachment | None = None
        self._level = level
        self._sent: deque[tuple[int, float]] = deque(maxlen=SENT_REMEMBERED)
        """What was sent last, and when: acknowledgements tell the round trip."""
        self._opening: Message = {
            "type": "session",
            "session": str(session_id),
            "reference": reference,
            "epoch": epoch,
            "seq": cursor,
            "server_time": _now(),
            "heartbeat_seconds": socket._quality.heartbeat,
            "silence_seconds": silence(socket._quality.wishes.heartbeat),
            "resume_window_seconds": conf().resume_window,
            "level": level.value,
        }
        if ref is not None:
            self._opening["ref"] = ref

    def heed_quality(self) -> None:
        """The connection is better or worse than it was, or its client wants something else."""
        if self.attachment is not None:
            self.attachment.window = self._socket._quality.coalesce_ms(self._level) / 1000
            self.attachment.note_health()

    def note_round_trip(self, seq: int) -> None:
        """The client has acknowledged ``seq``."""
        while self._sent and self._sent[0][0] <= seq:
            sent, at = self._sent.popleft()
            if sent == seq:
                now = asyncio.get_running_loop().time()
                self._socket._quality.note_round_trip(now - at)

    async def run(self) -> None:
        socket = self._socket
        loop = asyncio.get_running_loop()
        connection = socket.scope.get("extensions", {}).get("unbroken.socket")
        try:
            with attached(
                self._gateway, self._session_id, self._cursor, connection, "websocket"
            ) as attachment:
                self.attachment = attachment
                self.heed_quality()
                await socket._send(self._opening)
                async with aclosing(attachment.pieces()) as pieces:
                    async for piece in pieces:
                        if piece is not None:
                            await self._tell_controls(attachment)
                            await self._tell_tokens(attachment, piece)
                            attachment.reader.sent(piece.last_seq, loop.time())
                            self._sent.append((piece.last_seq, loop.time()))
                        # After tokens too: news that came meanwhile wakes nobody again.
                        await self._tell_controls(attachment)
                        await self._tell_state(attachment)
        except GatewayError as exc:
            await socket._tell_error(exc, session_id=self._session_id)
        except Exception as exc:  # noqa: BLE001  the edge of the task
            await socket._tell_error(socket._unforeseen(exc), session_id=self._session_id)

    async def _tell_controls(self, attachment: Attachment) -> None:
        """What has happened at the reader's cursor."""
        for control in attachment.due_controls():
            if control.name in ("recovering", "recovered"):
                self.recovering = control.name == "recovering"
                await self._socket._send(
                    {"type": control.name, "session": str(self._session_id), **control.data}
                )

    async def _tell_state(self, attachment: Attachment) -> None:
        """A recovery that this process did not begin, or whose beginning it did not see."""
        if (
            attachment.state is SessionState.RECOVERING
            and not self.recovering
            and attachment.is_caught_up  # what was durable before it belongs before it
        ):
            self.recovering = True
            await self._socket._send(
                {
                    "type": "recovering",
                    "session": str(self._session_id),
                    "seq": attachment.reader.cursor,
                }
            )

    async def _tell_tokens(self, attachment: Attachment, piece: LogSlice) -> None:
        session = str(self._session_id)
        seq = piece.last_seq - (piece.terminal is not None)
        if attachment.state is not SessionState.RECOVERING:  # else they are from before the failure
            self.recovering = False
        if piece.text or piece.terminal is None:
            await self._socket._send(
                {"type": "token", "session": session, "seq": seq, "text": piece.text}
            )
        if piece.terminal is None:
            return
        if error := piece.terminal.get("error"):
            await self._socket._send(
                {
                    "type": "error",
                    "session": session,
                    "seq": piece.last_seq,
                    **error_from_openai(error).as_openai(),
                }
            )
            return
        await self._socket._send(
            {
                "type": "done",
                "session": session,
                "seq": piece.last_seq,
                "state": piece.terminal.get("state"),
                "finish_reason": piece.terminal.get("finish_reason") or None,
                "usage": usage_of(piece.terminal, piece.last_seq - 1),
            }
        )


def _parsed(text: str | None, data: bytes | None) -> Message:
    try:
        message = orjson.loads(text if text is not None else data or b"")
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The message is not valid JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise InvalidRequest("A message must be a JSON object.")
    return message


def _session_id(message: Message) -> UUID:
    try:
        return UUID(str(message.get("session")))
    except ValueError:
        raise NotFound("There is no such session.") from None


def _text(message: Message, name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string.", param=name)
    return value


def _seq(message: Message) -> int:
    seq = message.get("seq", 0)
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 2**62:
        raise InvalidRequest("seq must be a non-negative integer.", param="seq")
    return seq


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
