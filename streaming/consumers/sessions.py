"""The sessions API: create, look, follow (SSE with resume), stop, acknowledge."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson

from streaming.conf import conf
from streaming.consumers.answer_stream import AnswerStream
from streaming.consumers.base import StreamConsumer, sse_headers
from streaming.consumers.heartbeat import silence
from streaming.consumers.long_poll import answer_poll, wait_of, wants_poll
from streaming.consumers.openai import begin, request_principal
from streaming.consumers.request import Request
from streaming.consumers.session_events import (
    SessionEventWriter,
    ended_usage,
    interrupted,
    session_body,
)
from streaming.consumers.wishes import wants_quality, wishes_of
from streaming.core import log_fields
from streaming.core.levels import Level
from streaming.errors import GatewayError, InvalidRequest, NotFound
from streaming.runtime.adoption import StoredSession, stored_session
from streaming.runtime.gateway import Gateway, current
from streaming.runtime.quality import ConnectionQuality
from streaming.services import sessions
from streaming.services.attach import (
    attached,
    check_cursor,
    find,
    note_end,
    note_return,
    note_sent,
)
from streaming.services.chat_requests import read_chat_request
from streaming.services.embed_tokens import apply_grant
from streaming.services.stored_answer import answer_pieces
from streaming.services.stream_tokens import check_stream_token, mint_stream_token


def session_id_of(request: Request) -> UUID:
    """Raises ``NotFound`` for what is not an id at all."""
    try:
        session_id = UUID(request.params["session_id"])
    except ValueError:
        raise NotFound("There is no such session.") from None
    log_fields.add(session_id=str(session_id))
    return session_id


class SessionsConsumer(StreamConsumer):
    """``POST /v1/sessions``: begin an answer to be followed by its events."""

    methods = ("POST",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        body = apply_grant(principal, request.body)
        chat = read_chat_request(body)
        session_id = await begin(
            gateway, principal, chat, request, "sessions", self.extra_headers, body=body
        )
        log_fields.add(session_id=str(session_id))
        live = gateway.sessions.get(session_id)
        if live is not None:
            await live.log.stored()
        stored = await stored_session(gateway.pool, session_id)
        if stored is None:
            raise NotFound("The session could not be created.")
        await self.respond_json(
            201,
            {
                **session_body(stored),
                "stream_token": mint_stream_token(session_id),
                "events_url": f"/v1/sessions/{session_id}/events",
            },
        )


class SessionConsumer(StreamConsumer):
    """``GET /v1/sessions/{id}``: the session, and once it has ended its answer.

    The text is read and written piece by piece. Whoever gets it has it delivered, as by events.
    """

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        stored = await find(gateway, principal, session_id_of(request))
        body = {**session_body(stored), "usage": ended_usage(stored)}
        unwanted = request.query.get("answer") == "0"
        if unwanted or not stored.ended or stored.purged_at is not None:
            await self.respond_json(200, body if unwanted else {**body, "answer": None})
            return
        async with aclosing(answer_pieces(gateway, stored)) as pieces:
            # Before the head: what can't be read is told by a status.
            first = await anext(pieces, "")
            await self.start_stream(headers=[(b"content-type", b"application/json")])
            await self.write(orjson.dumps(body)[:-1] + b',"answer":{"text":"' + _escaped(first))
            async for text in pieces:
                await self.write(_escaped(text))
        told = {"tokens": max(stored.durable_seq - 1, 0), "finish_reason": body["finish_reason"]}
        await self.write(b'",' + orjson.dumps(told)[1:] + b"}")
        note_sent(gateway, stored.id, stored.durable_seq, self.socket)

    async def inband_error(self, error: GatewayError) -> None:
        """Nothing: JSON that breaks off is read by nobody as an answer."""


def _escaped(text: str) -> bytes:
    """As it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]


class SessionEventsConsumer(StreamConsumer):
    """``GET /v1/sessions/{id}/events``: what follows the cursor, then live, then the end.

    As server-sent events, or poll by poll (``long_poll``). The cursor is ``Last-Event-ID`` (what
    ``EventSource`` sends by itself) or ``?last_id=``.
    """

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        session_id = session_id_of(request)
        stored = await self._authorised(gateway, request, session_id)
        said = cursor_of(request)
        poll_seconds = wait_of(request) if wants_poll(request) else None
        cursor = said or 0
        if not check_cursor(stored, cursor):
            await note_end(gateway, stored)
            await self.respond_empty(204)
            return
        if said is not None:
            await note_return(gateway, stored, cursor)
        wishes = wishes_of(request)
        level = Level(stored.level or Level.STANDARD)
        quality = ConnectionQuality(self.socket, level, wishes)
        opening = {
            "session_id": str(session_id),
            "reference": stored.reference,
            "epoch": stored.epoch,
            "server_time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "heartbeat_seconds": quality.heartbeat,
            "silence_seconds": silence(wishes.heartbeat),
            "resume_window_seconds": conf().resume_window,
            "cursor": cursor,
            "level": level.value,
        }
        if poll_seconds is not None:
            await answer_poll(
                self,
                gateway,
                stored,
                cursor=cursor,
                wait=poll_seconds,
                opening=opening if said is None else None,
            )
            return
        with attached(gateway, session_id, cursor, self.socket, "sse") as attachment:
            await AnswerStream(
                self,
                attachment,
                SessionEventWriter(opening, tells_quality=wants_quality(request.query)),
                headers=lambda: sse_headers(str(session_id), self.request_id),
                start_after=0,
                quality=quality,
                resumable=True,
            ).run()

    async def inband_error(self, error: GatewayError) -> None:
        await self.write(interrupted(error))

    async def _authorised(
        self, gateway: Gateway, request: Request, session_id: UUID
    ) -> StoredSession:
        """By API key, or by a stream token of this very session."""
        token = request.query.get("stream_token")
        if token is None:
            principal = await request_principal(gateway, request)
            return await find(gateway, principal, session_id)
        page = request.page
        await check_stream_token(gateway.pool, token, session_id, page.origin, is_own=page.is_own)
        stored = await stored_session(gateway.pool, session_id)
        if stored is None:
            raise NotFound("There is no such session.")
        log_fields.add(tenant_id=stored.tenant_id)
        return stored


class StopConsumer(StreamConsumer):
    """``POST /v1/sessions/{id}/stop``."""

    methods = ("POST",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        stored = await sessions.stop_session(gateway, principal, session_id_of(request))
        await self.respond_json(200 if stored.ended else 202, session_body(stored))


class AckConsumer(StreamConsumer):
    """``POST /v1/sessions/{id}/ack`` with ``{"seq": n}``."""

    methods = ("POST",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        seq = _seq_of(request.body)
        delivered = await sessions.acknowledge(gateway, principal, session_id_of(request), seq)
        await self.respond_json(200, {"delivered_seq": delivered})


def cursor_of(request: Request) -> int | None:
    """The last seq that the reader has; None: it does not say. Raises ``InvalidRequest``."""
    text = request.header("last-event-id") or request.query.get("last_id")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise InvalidRequest("The cursor must be the id of an event.", param="last_id")
    return int(text)


def _seq_of(body: bytes) -> int:
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON: {exc}") from exc
    seq = value.get("seq") if isinstance(value, dict) else None
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 2**62:
        raise InvalidRequest("seq must be a non-negative integer.", param="seq")
    return seq
