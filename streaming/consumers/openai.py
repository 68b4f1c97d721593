"""``POST /v1/chat/completions`` and ``GET /v1/models``, as OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from uuid import UUID

from streaming.conf import conf
from streaming.consumers.answer_stream import AnswerStream
from streaming.consumers.base import Header, StreamConsumer, sse_headers
from streaming.consumers.openai_format import Completion, OpenAIWriter, whole_completion
from streaming.consumers.request import Request, named_end_user
from streaming.consumers.wishes import wishes_of
from streaming.core import log_fields
from streaming.core.chat import ChatRequest
from streaming.errors import error_from_openai
from streaming.runtime.gateway import Gateway, current
from streaming.runtime.live import Principal
from streaming.runtime.quality import ConnectionQuality
from streaming.services import idempotency, rate_limits, sessions
from streaming.services.attach import Attachment, attached
from streaming.services.auth import authenticate
from streaming.services.chat_requests import read_chat_request
from streaming.services.embed_tokens import allows_model, apply_grant
from streaming.services.origins import check_origin
from streaming.services.quality import with_quality
from streaming.services.rate_limits import Usage


async def request_principal(gateway: Gateway, request: Request) -> Principal:
    """Who asks: the credential, and the end user that it names or is bound to.

    A page of ours may have an embed token in a cookie instead. Raises ``AuthenticationFailed``,
    ``OriginNotAllowed`` for pages that the tenant does not allow, ``CsrfFailed``.
    """
    page = request.page
    authorization = request.header("authorization")
    if authorization is None and page.token_cookie:
        page.check_first_party()
        authorization = f"Bearer {page.token_cookie}"
    principal = await authenticate(gateway, authorization, named_end_user(request.headers))
    check_origin(principal, page.origin, is_own=page.is_own)
    log_fields.add(tenant_id=principal.tenant_id)
    return principal


async def begin(
    gateway: Gateway,
    principal: Principal,
    chat: ChatRequest,
    request: Request,
    protocol: str,
    headers: list[Header],
    *,
    body: bytes,
) -> UUID:
    """The session of a request: a new one, or the one of its ``Idempotency-Key``.

    ``body``: what is really asked for. The key stands for the client's own body: a fresh token may
    have another preset. How limits stand is added to ``headers``, also where one refuses.
    """
    usage = Usage()
    try:
        return await _begin(gateway, principal, chat, request, protocol, body, usage)
    finally:
        headers += usage.headers()


async def _begin(
    gateway: Gateway,
    principal: Principal,
    chat: ChatRequest,
    request: Request,
    protocol: str,
    body: bytes,
    usage: Usage,
) -> UUID:
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
            await rate_limits.look(gateway, principal, end_user, usage)
            return session_id
    session = None
    try:
        session = await sessions.create_session(
            gateway,
            principal,
            chat,
            body=body,
            request_id=request.request_id,
            protocol=protocol,
            rehearsal=rehearsal,
            session_id=session_id,
            usage=usage,
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
        body = apply_grant(principal, request.body)
        chat = read_chat_request(body)
        if not chat.stream and request.header("idempotency-key") is None:
            # Nobody could come back for it.
            principal = replace(principal, on_disconnect="cancel")
        wishes = wishes_of(request)
        session_id = await begin(
            gateway, principal, chat, request, "openai", self.extra_headers, body=body
        )
        self.session_id = session_id
        log_fields.add(session_id=str(session_id))
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
                quality=ConnectionQuality(self.socket, attachment.level(principal.level), wishes),
            ).run()

    async def _answer_whole(self, attachment: Attachment, completion: Completion) -> None:
        parts: list[str] = []
        loop, reader = asyncio.get_running_loop(), attachment.reader
        began = loop.time()
        try:
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
                    reader.sent(piece.last_seq, loop.time())
        finally:
            outcome = "whole" if reader.cursor else "early"
            self.log_answer("openai", outcome, loop.time() - began, reader.cursor)


class ModelsConsumer(StreamConsumer):
    """The models of all healthy nodes, and the caller's aliases of them."""

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        served = gateway.fleet.models()
        aliases = await sessions.model_aliases(gateway.pool, principal)
        names = [*served, *(alias for alias, model in aliases.items() if model in served)]
        names = [name for name in names if allows_model(principal, name)]
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
