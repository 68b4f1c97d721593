"""``POST /v1/chat/completions`` and ``GET /v1/models``, as OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import orjson
import psycopg

from streaming.conf import conf
from streaming.consumers.base import Header, StreamConsumer, sse_headers
from streaming.consumers.heartbeat import KEEPALIVE, PING, KeepAlive
from streaming.consumers.openai_format import ChunkWriter, usage_of, whole_completion
from streaming.consumers.request import Request
from streaming.core.chat import BadParameter, ChatRequest, NotSupported, parse_chat_request
from streaming.core.state import SessionState
from streaming.errors import (
    InvalidRequest,
    JournalUnavailable,
    UnsupportedParameter,
    error_from_openai,
)
from streaming.runtime.gateway import Gateway, current
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.token_log import LogSlice
from streaming.services import sessions
from streaming.services.auth import authenticate


def parse_body(body: bytes) -> ChatRequest:
    """Read and validate a chat request. Raises ``InvalidRequest`` or ``UnsupportedParameter``."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON: {exc}") from exc
    try:
        return parse_chat_request(value)
    except NotSupported as exc:
        raise UnsupportedParameter(str(exc), param=exc.param) from exc
    except BadParameter as exc:
        raise InvalidRequest(str(exc), param=exc.param or None) from exc


@contextmanager
def database_needed() -> Iterator[None]:
    """Before a session exists nothing can wait for the database: say that it is away."""
    try:
        yield
    except psycopg.OperationalError as exc:
        raise JournalUnavailable("The database cannot be reached.", retry_after=1) from exc


class ChatCompletionsConsumer(StreamConsumer):
    """One answer to one client. The client's leaving ends the session at once."""

    methods = ("POST",)
    session: LiveSession | None = None

    async def handle(self, request: Request) -> None:
        gateway = current()
        with database_needed():
            principal = await authenticate(gateway, request.header("authorization"))
            chat = parse_body(request.body)
            rehearsal = sessions.parse_rehearsal(request.header("x-unbroken-rehearse"), principal)
            session = await sessions.create_session(
                gateway,
                principal,
                chat,
                body=request.body,
                request_id=request.request_id,
                protocol="openai",
                rehearsal=rehearsal,
            )
        self.session = session
        session.readers += 1
        try:
            if chat.stream:
                tell_controls = request.header("x-unbroken-events") == "1"
                await _Stream(self, gateway, session, tell_controls).run()
            else:
                await self._answer_whole(gateway, session)
        except JournalUnavailable as error:
            # Does nothing if that is how the session has ended already.
            told = error.as_openai()["error"]
            session.ask_to_end(SessionEnd(SessionState.FAILED, cause=error.code, error=told))
            raise
        finally:
            sessions.leave(session)

    async def respond_json(self, status: int, obj: Any, headers: Iterable[Header] = ()) -> None:
        """Errors name the session too: some leave it resumable."""
        if self.session is not None:
            headers = [*headers, (b"x-session-id", str(self.session.id).encode())]
        await super().respond_json(status, obj, headers)

    async def _answer_whole(self, gateway: Gateway, session: LiveSession) -> None:
        parts: list[str] = []
        async with aclosing(sessions.read(gateway, session, 0)) as slices:
            async for piece in slices:
                if piece is None:
                    continue
                parts.append(piece.text)
                if piece.terminal is None:
                    continue
                if error := piece.terminal.get("error"):
                    raise error_from_openai(error)
                usage = usage_of(session, piece.last_seq - 1)
                finish = piece.terminal["finish_reason"] or "stop"
                await self.respond_json(
                    200, whole_completion(session, "".join(parts), finish, usage)
                )


class _Stream:
    """The course of one streamed answer: when the head goes out, and what each slice becomes."""

    def __init__(
        self, consumer: StreamConsumer, gateway: Gateway, session: LiveSession, tell_controls: bool
    ) -> None:
        self._consumer = consumer
        self._gateway = gateway
        self._session = session
        self._writer = ChunkWriter(session)
        self._tell_controls = tell_controls
        self._controls_told = 0
        self._seq = 0
        self._keep_alive: KeepAlive | None = None
        self._pinging = False
        self._starting = asyncio.Lock()

    async def run(self) -> None:
        """Stream to the end. Raises ``GatewayError``: before the head as a status, else in-band."""
        starter = asyncio.get_running_loop().create_task(self._start_after_a_while())
        try:
            async with aclosing(sessions.read(self._gateway, self._session, 0)) as slices:
                async for piece in slices:
                    if piece is not None:
                        await self._send(self._events_of(piece))
                        self._seq = piece.last_seq
                        if piece.terminal is not None and (error := piece.terminal.get("error")):
                            raise error_from_openai(error)
                    # After tokens too: news that came while they were sent wakes nobody again.
                    await self._send(self._due_controls(self._seq))
                    self._look_at_state()
        finally:
            starter.cancel()
            if self._keep_alive is not None:
                self._keep_alive.__exit__()

    async def _start_after_a_while(self) -> None:
        """The 200 is sent at the first durable token or after a while, whichever comes first."""
        await asyncio.sleep(conf().response_start_seconds)
        await self._start()

    async def _start(self) -> None:
        async with self._starting:
            if not self._consumer.started:
                await self._send_head()

    async def _send_head(self) -> None:
        headers = sse_headers(str(self._session.id), self._consumer.request_id)
        await self._consumer.start_stream(200, headers)
        await self._consumer.write(self._writer.role())
        self._keep_alive = KeepAlive(self._consumer, conf().keepalive_seconds)
        self._keep_alive.__enter__()
        self._look_at_state()

    async def _send(self, data: bytes) -> None:
        if data:
            if self._keep_alive is None:
                await self._start()
            await self._consumer.write(data)

    def _events_of(self, piece: LogSlice) -> bytes:
        """The events for new tokens, and for a good end."""
        self._recovered()
        session = self._session
        tokens_to = piece.last_seq - (piece.terminal is not None)
        data = self._due_controls(tokens_to)
        if piece.text:
            data += self._writer.content(tokens_to, piece.text)
        if piece.terminal is None:
            return data
        if piece.terminal.get("error"):
            return data
        finish = piece.terminal["finish_reason"] or "stop"
        usage = usage_of(session, tokens_to) if session.request.include_usage else None
        return data + self._writer.end(piece.last_seq, finish, usage)

    def _look_at_state(self) -> None:
        """Ping a reader whose answer is being recovered, at once and then every second."""
        recovering = self._session.state is SessionState.RECOVERING
        if recovering and not self._pinging and self._keep_alive is not None:
            self._pinging = True
            self._keep_alive.change(conf().recovering_ping_seconds, PING, now=True)

    def _recovered(self) -> None:
        if self._session.state is SessionState.RECOVERING:
            return  # these tokens are from before the failure
        if self._pinging and self._keep_alive is not None:
            self._pinging = False
            self._keep_alive.change(conf().keepalive_seconds, KEEPALIVE)

    def _due_controls(self, seq: int) -> bytes:
        """Control events that belong before what follows ``seq``, for a reader that wants them."""
        if not self._tell_controls:
            return b""
        data = b""
        controls = self._session.controls
        while self._controls_told < len(controls) and controls[self._controls_told].seq <= seq:
            control = controls[self._controls_told]
            data += b"event: unbroken.%s\ndata: " % control.name.encode()
            data += orjson.dumps(control.data) + b"\n\n"
            self._controls_told += 1
        return data


class ModelsConsumer(StreamConsumer):
    """The models of all healthy nodes, and the caller's aliases of them."""

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        with database_needed():
            principal = await authenticate(gateway, request.header("authorization"))
            aliases = await sessions.model_aliases(gateway.pool, principal)
        served = gateway.fleet.models()
        names = [*served, *(alias for alias, model in aliases.items() if model in served)]
        await self.respond_json(
            200,
            {
                "object": "list",
                "data": [
                    {"id": name, "object": "model", "created": 0, "owned_by": "unbroken"}
                    for name in names
                ],
            },
        )
