"""The way into a WebSocket: who asks, from which page, and with which token from then on.

A client that can set headers is authenticated by its handshake. A browser's script cannot: it offers
the subprotocol ``unbroken.v1``, and its first message is ``auth`` with an embed token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from urllib.parse import parse_qs

import psycopg

from streaming.consumers.cross_origin import is_allowed_by_any
from streaming.consumers.page import Page
from streaming.consumers.request import Receive, decoded_headers, named_end_user
from streaming.consumers.socket_messages import (
    Message,
    MessageSocket,
    now_text,
    parsed,
    text_of,
)
from streaming.core import log_fields
from streaming.errors import (
    AuthenticationFailed,
    GatewayError,
    NotPermitted,
    OriginNotAllowed,
    RequestTooLarge,
)
from streaming.ports import ports
from streaming.runtime.gateway import current
from streaming.runtime.live import Principal
from streaming.services.auth import authenticate
from streaming.services.origins import check_origin

RESTARTING = 1012
UNAUTHORISED = 4401
FORBIDDEN = 4403
MALFORMED = 4400

PROTOCOL = "unbroken.v1"
AUTH_SECONDS = 10.0
"""What a browser has for its first message."""
MAX_AUTH_BYTES = 4096


class EntrySocket(MessageSocket):
    """Lets somebody in or turns them away. Override ``_read_query`` and ``_entered``."""

    _principal: Principal | None = None
    """Who was let in."""
    _authorization: str | None = None
    """What it was authenticated with: looked at again for whatever begins something."""
    _deadline: asyncio.Task[None] | None = None
    """Runs while the first message of a browser is awaited."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tasks: set[asyncio.Task[None]] = set()

    def _read_query(self, query: dict[str, list[str]]) -> None:
        """Called once, before it is known who asks. Raises ``InvalidRequest``."""
        raise NotImplementedError

    def _entered(self) -> None:
        """Called once, when somebody was let in."""
        raise NotImplementedError

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        if ports.tracing is None:
            await super().__call__(scope, receive, send)
            return
        with ports.tracing.reader(
            f"WebSocket {scope['path']}", scope["headers"], path=scope["path"]
        ):
            await super().__call__(scope, receive, send)

    async def connect(self) -> None:
        log_fields.begin(request_id=self._request_id)
        query = parse_qs(self.scope.get("query_string", b"").decode("latin-1"))
        self._cloudevents = query.get("envelope") == ["cloudevents"]
        headers = decoded_headers(self.scope)
        self._page = Page(self.scope)
        self._user = named_end_user(headers)
        speaks_first = PROTOCOL in self.scope.get("subprotocols", [])
        await self.accept(PROTOCOL if speaks_first else None)
        try:
            self._gateway = current()
            self._read_query(query)
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
        self._entered()

    async def _holder(self, authorization: str | None) -> Principal:
        """Whose credential it is, on this page. Raises as ``authenticate``, ``OriginNotAllowed``."""
        principal = await authenticate(self._gateway, authorization, self._user)
        check_origin(principal, self._page.origin, is_own=self._page.is_own)
        log_fields.add(tenant_id=principal.tenant_id)
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
            message = parsed(text, data)
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
        token = text_of(message, "token")
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

    @property
    def _authenticated(self) -> Principal:
        assert self._principal is not None
        return self._principal

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
