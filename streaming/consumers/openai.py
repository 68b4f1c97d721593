"""``POST /v1/chat/completions`` and ``GET /v1/models``, as OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from streaming.conf import conf
from streaming.consumers.answer_stream import AnswerStream
from streaming.consumers.base import Header, StreamConsumer, sse_headers
from streaming.consumers.openai_format import Completion, OpenAIWriter, whole_completion
from streaming.consumers.request import Request, named_end_user
from streaming.consumers.wishes import wishes_of
from streaming.core.chat import BadParameter, ChatRequest, NotSupported, parse_chat_request
from streaming.errors import (
    InvalidRequest,
    UnsupportedParameter,
    error_from_openai,
)
from streaming.runtime.gateway import Gateway, current
from streaming.runtime.live import Principal
from streaming.runtime.quality import quality_of
from streaming.services import idempotency, sessions
from streaming.services.attach import Attachment, attached
from streaming.services.auth import authenticate
from streaming.services.quality import with_quality


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


async def request_principal(gateway: Gateway, request: Request) -> Principal:
    """Who asks: the API key, and the end user that it names. Raises ``AuthenticationFailed``."""
    user = named_end_user(request.headers)
    return await authenticate(gateway, request.header("authorization"), user)


async def begin(
    gateway: Gateway, principal: Principal, chat: ChatRequest, request: Request, protocol: str
) -> UUID:
    """The session of a request: a new one, or the one of its ``Idempotency-Key``."""
    principal = with_quality(
        principal, request.header("x-unbroken-level"), request.header("x-unbroken-variant")
    )
    rehearsal = sessions.parse_rehearsal(request.header("x-unbroken-rehearse"), principal)
    key = request.header("idempotency-key")
    session_id = None
    if key is not None:
        end_user = principal.end_user or chat.user
        session_id, is_ours = await idempotency.claim(
            gateway, principal, end_user, key, request.body
        )
        if not is_ours:
            return session_id
    session = None
    try:
        session = await sessions.create_session(
            gateway,
            principal,
            chat,
            body=request.body,
            request_id=request.request_id,
            protocol=protocol,
            rehearsal=rehearsal,
            session_id=session_id,
        )
    finally:  # refused, or its client has left already
        if session is None and session_id is not None:
            await idempotency.release(gateway, session_id)
    return session.id


class ChatCompletionsConsumer(StreamConsumer):
    """One answer to one client."""

    methods = ("POST",)
    session_id: UUID | None = None

    async def respond_json(self, status: int, obj: Any, headers: Iterable[Header] = ()) -> None:
        """Errors name the session too: some leave it resumable."""
        if self.session_id is not None:
            headers = [*headers, (b"x-session-id", str(self.session_id).encode())]
        await super().respond_json(status, obj, headers)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        chat = parse_body(request.body)
        if not chat.stream and request.header("idempotency-key") is None:
            # Nobody could come back for it.
            principal = replace(principal, on_disconnect="cancel")
        wishes = wishes_of(request)
        session_id = await begin(gateway, principal, chat, request, "openai")
        self.session_id = session_id
        completion = Completion(session_id, chat)
        with attached(gateway, session_id, 0, self.socket, "openai") as attachment:
            if not chat.stream:
                await self._answer_whole(attachment, completion)
                return
            await AnswerStream(
                self,
                attachment,
                OpenAIWriter(completion, tell_controls=request.header("x-unbroken-events") == "1"),
                headers=lambda: sse_headers(str(session_id), self.request_id),
                start_after=conf().response_start_seconds,
                quality=quality_of(
                    self.socket, attachment.level(principal.level), (attachment.reader,), wishes
                ),
            ).run()

    async def _answer_whole(self, attachment: Attachment, completion: Completion) -> None:
        parts: list[str] = []
        async with aclosing(attachment.pieces()) as pieces:
            async for piece in pieces:
                if piece is None:
                    continue
                parts.append(piece.text)
                if piece.terminal is None:
                    continue
                if error := piece.terminal.get("error"):
                    raise error_from_openai(error)
                body = whole_completion(completion, "".join(parts), piece)
                await self.respond_json(200, body)
                now = asyncio.get_running_loop().time()
                attachment.reader.sent(piece.last_seq, now)


class ModelsConsumer(StreamConsumer):
    """The models of all healthy nodes, and the caller's aliases of them."""

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        served = gateway.fleet.models()
        aliases = await sessions.model_aliases(gateway.pool, principal)
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
