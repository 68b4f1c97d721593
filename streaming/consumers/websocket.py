"""``/ws/chat/``: several sessions over one socket.

A client that can set headers is authenticated by its handshake. A browser's script cannot: it offers
the subprotocol ``unbroken.v1``, and its first message is ``auth`` with an embed token.

``receive`` only routes: each session is followed by a task of its own, so that stop, acks and the
disconnect are seen at once. Every protocol error is answered, none is dropped. The messages are
written down in ``docs/protocol.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import parse_qs
from uuid import UUID, uuid4

import orjson
import psycopg
from channels.generic.websocket import AsyncWebsocketConsumer

from streaming.conf import conf
from streaming.consumers.cross_origin import is_allowed_by_any
from streaming.consumers.follow import Follow, Message, now_text
from streaming.consumers.page import Page
from streaming.consumers.request import decoded_headers, named_end_user
from streaming.consumers.wishes import update
from streaming.core.chat import ChatRequest
from streaming.core.levels import Level
from streaming.errors import (
    AuthenticationFailed,
    CursorBeyondLog,
    GatewayError,
    InvalidRequest,
    JournalUnavailable,
    NotFound,
    NotPermitted,
    OriginNotAllowed,
    RequestTooLarge,
)
from streaming.metrics import connection_ended
from streaming.metrics.catalogue import WEBSOCKETS
from streaming.runtime.gateway import current
from streaming.runtime.live import Principal
from streaming.runtime.quality import ConnectionQuality
from streaming.services import sessions
from streaming.services.attach import (
    check_cursor,
    find,
    note_end,
    note_return,
)
from streaming.services.auth import authenticate, named
from streaming.services.chat_requests import read_chat_request
from streaming.services.embed_tokens import apply_grant
from streaming.services.origins import check_origin
from streaming.services.quality import with_quality

logger = logging.getLogger(__name__)

MAX_SESSIONS = 32
WISHES = {"heartbeat", "coalesce"}
"""Those that the query may have."""
RESTARTING = 1012
UNAUTHORISED = 4401
FORBIDDEN = 4403
MALFORMED = 4400

PROTOCOL = "unbroken.v1"
AUTH_SECONDS = 10.0
"""What a browser has for its first message."""
MAX_AUTH_BYTES = 4096
MAX_REF_BYTES = 4096


class ChatSocket(AsyncWebsocketConsumer):
    """Client: ``auth``, ``start``, ``resume``, ``ack``, ``stop``, ``wish``, ``ping``. Server: ``ready``,
    ``session``, ``token``, ``recovering``, ``recovered``, ``done``, ``error``, ``quality``, ``ping``,
    ``pong``."""

    _principal: Principal | None = None
    _authorization: str | None = None
    """What it was authenticated with: looked at again for whatever begins something."""
    _deadline: asyncio.Task[None] | None = None
    """Runs while the first message of a browser is awaited."""

    async def connect(self) -> None:
        self._following: dict[UUID, Follow] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        self._cloudevents = query.get("envelope") == ["cloudevents"]
        self._tells_quality = query.get("quality") == ["1"]
        self._quality = ConnectionQuality(self.scope.get("extensions", {}).get("unbroken.socket"))
        self._request_id = uuid4().hex
        headers = decoded_headers(self.scope)
        self._page = Page(self.scope)
        self._user = named_end_user(headers)
        speaks_first = PROTOCOL in self.scope.get("subprotocols", [])
        await self.accept(PROTOCOL if speaks_first else None)
        try:
            self._gateway = current()
            update(self._quality.wishes, {name: query[name][-1] for name in WISHES & set(query)})
            if self._page.is_foreign and not await is_allowed_by_any(self._page.origin or ""):
                raise OriginNotAllowed
            if speaks_first:
                self._deadline = self._spawn(self._expect_auth())
                return
            authorization = headers.get("authorization")
            if authorization is None:
                authorization = self._cookie()
            await self._enter(authorization)
        except GatewayError as exc:
            await self._turn_away(exc)
        except psycopg.OperationalError as exc:
            await self._turn_away(self._without_database(exc))

    async def _enter(self, authorization: str | None) -> None:
        """Let somebody in, from now on. Raises ``AuthenticationFailed``, ``OriginNotAllowed``."""
        self._principal = await self._holder(authorization)
        self._authorization = authorization
        self._born = asyncio.get_running_loop().time()
        WEBSOCKETS.value += 1
        self._spawn(self._heartbeat())

    async def _holder(self, authorization: str | None) -> Principal:
        """Whose credential it is, on this page. Raises as ``authenticate``, ``OriginNotAllowed``."""
        principal = await authenticate(self._gateway, authorization, self._user)
        check_origin(principal, self._page.origin, is_own=self._page.is_own)
        return principal

    def _cookie(self) -> str | None:
        """The embed token that one of our own pages has in a cookie. Raises ``OriginNotAllowed``."""
        if not self._page.token_cookie:
            return None
        self._page.check_first_party()
        return f"Bearer {self._page.token_cookie}"

    async def _expect_auth(self) -> None:
        await asyncio.sleep(AUTH_SECONDS)
        await self._turn_away(AuthenticationFailed("No auth message has come in time."))

    async def _turn_away(self, error: GatewayError, cause: Any = None) -> None:
        """Close, saying why."""
        self._deadline = None
        await self._tell_error(error, cause)
        match error:
            case AuthenticationFailed():
                code = UNAUTHORISED
            case NotPermitted():
                code = FORBIDDEN
            case _:
                code = RESTARTING if error.http_status == 503 else MALFORMED
        await self.close(code)

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
            await self._receive_first(text_data, bytes_data)
            return
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
        except psycopg.OperationalError as exc:
            await self._tell_error(self._without_database(exc), message)
        except Exception as exc:  # noqa: BLE001  the edge: the client gets an answer, the log the cause
            await self._tell_error(self._unforeseen(exc), message)

    async def _receive_first(self, text: str | None, data: bytes | None) -> None:
        """The first message of a browser. Whatever it is, nothing but ``auth`` is done."""
        if self._deadline is None:
            return  # it has been told why, and is being closed
        self._deadline.cancel()
        self._deadline = None
        message: Any = None
        try:
            if len(text or data or "") > MAX_AUTH_BYTES:
                raise RequestTooLarge("The auth message is too large.")
            message = _parsed(text, data)
            if message.get("type") != "auth":
                raise AuthenticationFailed("The first message must be auth.")
            await self._enter(self._token_of(message))
            await self._tell_ready()
        except GatewayError as exc:
            await self._turn_away(exc, message)
        except psycopg.OperationalError as exc:
            await self._turn_away(self._without_database(exc), message)
        except Exception as exc:  # noqa: BLE001  the edge: the client gets an answer, the log the cause
            await self._turn_away(self._unforeseen(exc), message)

    # What clients ask for

    async def _auth(self, message: Message) -> None:
        """A fresh token for the same end user: ``{"type": "auth", "token": …}``."""
        authorization = self._token_of(message)
        principal = await self._holder(authorization)
        own = self._authenticated
        if (principal.tenant_id, principal.end_user) != (own.tenant_id, own.end_user):
            raise NotPermitted("This socket belongs to another end user: open a new one.")
        self._principal = principal
        self._authorization = authorization
        await self._tell_ready()

    def _token_of(self, message: Message) -> str | None:
        """Without a token: the cookie's, on pages of our own."""
        token = _text(message, "token")
        return self._cookie() if token is None else f"Bearer {token}"

    async def _tell_ready(self) -> None:
        principal = self._authenticated
        until = principal.embed.expires_at if principal.embed else None
        await self._send(
            {
                "type": "ready",
                "server_time": now_text(),
                "user": principal.end_user,
                "expires_at": until and until.isoformat(timespec="milliseconds"),
            }
        )

    async def _entitled(self) -> Principal:
        """Who asks, if the credential still opens anything. Raises as ``authenticate``."""
        self._principal = await self._holder(self._authorization)
        return self._principal

    async def _start(self, message: Message) -> None:
        """Begin an answer: ``{"type": "start", "ref": …, "request": {chat request}}``."""
        principal = await self._entitled()
        self._check_room()
        body = apply_grant(principal, _spelled(message.get("request"), "request"))
        chat = read_chat_request(body)
        principal = with_quality(principal, _text(message, "level"), _text(message, "variant"))
        rehearsal = sessions.parse_rehearsal(_text(message, "rehearse"), principal)
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
        await self._entitled()
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
        await self._send({"type": "pong", "server_time": now_text()})

    _handlers: dict[str, Callable[[ChatSocket, Message], Awaitable[None]]] = {
        "auth": _auth,
        "start": _start,
        "resume": _resume,
        "ack": _ack,
        "stop": _stop,
        "wish": _wish,
        "ping": _ping,
    }

    def _own(self, message: Message) -> Principal:
        """The principal, as the end user that the client's backend speaks for."""
        return named(self._authenticated, _text(message, "user") or None)

    @property
    def _authenticated(self) -> Principal:
        assert self._principal is not None
        return self._principal

    def _without_database(self, cause: psycopg.OperationalError) -> GatewayError:
        logger.warning(
            "no database for a message: %s", cause, extra={"request_id": self._request_id}
        )
        return JournalUnavailable("The database cannot be reached.", retry_after=1)

    def _unforeseen(self, cause: Exception) -> GatewayError:
        """Log what nobody foresaw, and tell the client where to find it."""
        logger.error("a message failed", exc_info=cause, extra={"request_id": self._request_id})
        return GatewayError(f"The gateway failed to answer; it is logged as {self._request_id}.")

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
                await self._send({"type": "ping", "server_time": now_text()})

    async def _send(self, message: Message) -> None:
        if self._cloudevents and message["type"] != "token":
            message = {
                "specversion": "1.0",
                "id": uuid4().hex,
                "source": "/ws/chat/",
                "type": f"unbroken.{message['type']}",
                "time": now_text(),
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
        if exc.retry_after is not None:
            message["error"]["retry_after"] = round(exc.retry_after, 3)
        if isinstance(cause, dict) and cause.get("ref") is not None:
            message["ref"] = cause["ref"]
        if session_id is not None:
            message["session"] = str(session_id)
        await self._send(message)

    _sent_at = 0.0
    _born = 0.0
    _starting = 0
    """Sessions that have yet to begin."""
    _moved = False
    """Whether it was told to come back on another connection."""


class UnknownSocket(AsyncWebsocketConsumer):
    """Every other path: refused."""

    async def connect(self) -> None:
        await self.close()


def _parsed(text: str | None, data: bytes | None) -> Message:
    try:
        message = orjson.loads(text if text is not None else data or b"")
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The message is not valid JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise InvalidRequest("A message must be a JSON object.")
    if len(_spelled(message.get("ref"), "ref")) > MAX_REF_BYTES:
        raise InvalidRequest(f"ref has at most {MAX_REF_BYTES} bytes.", param="ref")
    return message


def _spelled(value: Any, name: str) -> bytes:
    """As JSON again. Raises ``InvalidRequest`` for what is nested too deeply to be written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise InvalidRequest(f"{name} is nested too deeply.", param=name) from exc


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
