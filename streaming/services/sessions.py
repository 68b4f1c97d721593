"""What may be done to sessions: create, read, leave."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.chat import ChatRequest
from streaming.core.delivery import Marks
from streaming.core.ids import new_seed, reference_code, uuid7
from streaming.core.state import SessionState
from streaming.errors import CursorBeyondLog, InvalidRequest, ModelNotFound, NoHealthyNode
from streaming.ports import Start, ports
from streaming.runtime.adoption import StoredSession
from streaming.runtime.gateway import Gateway
from streaming.runtime.journal import record_event
from streaming.runtime.live import LiveSession, Principal, SessionEnd
from streaming.runtime.records import Record, RecordKind, now, packed
from streaming.runtime.token_log import SessionLog
from streaming.services import rate_limits
from streaming.services.attach import find
from streaming.services.audit import announce_async
from streaming.services.rate_limits import Usage
from streaming.services.session_actions import REQUEST_STOP

FIRST_EPOCH = 1


async def create_session(
    gateway: Gateway,
    principal: Principal,
    request: ChatRequest,
    *,
    body: bytes,
    request_id: str,
    protocol: str,
    rehearsal: list[int] | None = None,
    session_id: UUID | None = None,
    usage: Usage | None = None,
) -> LiveSession:
    """Start a session. Its runner waits until it is durable before it asks an engine.

    Waits for a slot where there is a limit of streams at once; ``usage`` is told how limits of rate
    stand. Raises ``ModelNotFound``, ``NoHealthyNode``, ``Overloaded``, ``QuotaExceeded``,
    ``RateLimited``, ``ShuttingDown``.
    """
    gateway.admit()
    model = await resolve_model(gateway, principal, request.model)
    session_id = session_id or uuid7()
    end_user = principal.end_user or request.user
    # The quota comes last: what it reserves is given back by nothing but the session's end.
    async with rate_limits.counted(gateway, principal, end_user, session_id, usage):
        await ports.admit(
            gateway.pool,
            Start(
                session_id=session_id, tenant_id=principal.tenant_id, model=model, request=request
            ),
        )
    log = SessionLog(session_id, FIRST_EPOCH, gateway.journal.notify)
    sampled = request.sampling.temperature > 0
    session = LiveSession(
        id=session_id,
        reference=reference_code(),
        principal=replace(principal, end_user=end_user),
        request=request,
        model=model,
        # A seed is what lets a sampled answer be continued with the same draws where engines can.
        seed=request.sampling.seed
        if request.sampling.seed is not None or not sampled
        else new_seed(),
        log=log,
        request_id=request_id,
        rehearsal=rehearsal or [],
    )
    at = now()
    traced = {}
    if ports.tracing is not None and (context := ports.tracing.here()):
        session.trace = traced["traceparent"] = context
    log.record(
        Record(
            RecordKind.SESSION_CREATED,
            {
                "id": session.id,
                "reference": session.reference,
                "tenant_id": principal.tenant_id,
                "api_key_id": principal.api_key_id,
                "end_user": session.principal.end_user,
                "request_id": request_id,
                "protocol": protocol,
                "model": model,
                "model_requested": request.model,
                "request": packed(body),
                "seed": session.seed,
                "state": session.state.value,
                "owner_id": gateway.instance_id,
                "created_at": at,
                "epoch": FIRST_EPOCH,
                "on_disconnect": principal.on_disconnect,
                "content_days": conf().content_days,
                "level": principal.level.value,
                "variant": principal.variant,
                "embed_token_id": principal.embed.token_id if principal.embed else None,
            },
        ),
        record_event(session.id, "created", 0, at, protocol=protocol, **traced),
    )
    gateway.run(session)
    return session


async def resolve_model(gateway: Gateway, principal: Principal, wanted: str) -> str:
    """The served model behind a name. Raises ``ModelNotFound`` or ``NoHealthyNode``."""
    if gateway.fleet.knows(wanted):
        return wanted
    aliases = await model_aliases(gateway.pool, principal)
    model = aliases.get(wanted)
    if model is None:
        if not gateway.fleet.models():
            raise NoHealthyNode("No engine node is healthy.", retry_after=1)
        raise ModelNotFound(
            f"The model '{wanted}' does not exist or you do not have access to it.", param="model"
        )
    return model


async def model_aliases(pool: AsyncConnectionPool, principal: Principal) -> dict[str, str]:
    """The aliases that a principal may use; its tenant's own win over everybody's."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT alias, model FROM streaming_modelalias WHERE tenant_id IS NULL OR tenant_id = %s"
            " ORDER BY tenant_id NULLS FIRST",
            (principal.tenant_id,),
        )
        return dict(await cursor.fetchall())


def parse_rehearsal(header: str | None, principal: Principal) -> list[int]:
    """The tokens after which the engine is to fail, from ``X-Unbroken-Rehearse: kill@50,120``.

    Raises ``InvalidRequest`` unless this deployment and this key allow rehearsals.
    """
    if header is None:
        return []
    if not (conf().allow_rehearsal and principal.is_test and principal.embed is None):
        raise InvalidRequest(
            "Faults may be rehearsed with test keys only, not with embed tokens, where ALLOW_REHEARSAL is set.",
            param="X-Unbroken-Rehearse",
        )
    kind, _, places = header.partition("@")
    tokens = places.split(",")
    if kind.strip() != "kill" or not all(_REHEARSED.fullmatch(token.strip()) for token in tokens):
        raise InvalidRequest(
            "Use X-Unbroken-Rehearse: kill@50 or kill@50,120.", param="X-Unbroken-Rehearse"
        )
    return sorted({int(token) for token in tokens})


async def stop_session(gateway: Gateway, principal: Principal, session_id: UUID) -> StoredSession:
    """End a session for good, wherever it is; the session as it then stands.

    The flag in the fence is the request; its owner sees it with the next flush or poll, and sooner
    by the hint. A session without a living owner is taken over to be stopped. Raises ``NotFound``.
    """
    deadline = asyncio.get_running_loop().time() + STOP_SECONDS
    stored = await find(gateway, principal, session_id)
    if not stored.ended:
        async with gateway.pool.connection() as connection, connection.transaction():
            cursor = await connection.execute(REQUEST_STOP, (session_id,))
            if cursor.rowcount:
                await announce_async(
                    connection,
                    "session.stop",
                    actor=f"key:#{principal.api_key_id}",
                    subject=f"session:{session_id}",
                    tenant_id=principal.tenant_id,
                    session_id=session_id,
                )
    while not stored.ended and asyncio.get_running_loop().time() < deadline:
        end = SessionEnd(SessionState.STOPPED, cause="client_stop")
        live = gateway.sessions.get(session_id)
        if live is not None:
            live.ask_to_end(end)
        elif stored.state is SessionState.SUSPENDED or stored.owner_is_dead:
            await gateway.adopt([session_id], "client_stop", end)
        elif stored.owner_id is not None:
            await gateway.bus.send(stored.owner_id, {"type": "stop", "session": str(session_id)})
        await asyncio.sleep(STOP_POLL_SECONDS)
        stored = await find(gateway, principal, session_id)
    return stored


async def acknowledge(gateway: Gateway, principal: Principal, session_id: UUID, seq: int) -> int:
    """The client says that it has everything up to ``seq``; the delivered mark as it now stands.

    What it cannot have been sent yet, as far as is known, counts once it has been. Where a gateway
    process has died while it was live, what that had sent is not known, and the client is believed. Raises ``NotFound``, and ``CursorBeyondLog`` for what cannot have been sent.
    """
    stored = await find(gateway, principal, session_id)
    if seq > stored.durable_seq:
        raise CursorBeyondLog(f"The log of this session ends at {stored.durable_seq}.")
    marks = Marks(acked=seq)
    live = gateway.sessions.get(session_id)
    if live is not None:
        for reader in live.readers:
            marks.learn(reader.look())
        live.note_delivered(marks)
        marks.learn(live.log.marks)  # of those that have left
    delivered = await gateway.store_delivered(session_id, marks)
    if (
        delivered is not None
        and delivered < seq
        and await gateway.may_have_died_sending(session_id)
    ):
        delivered = await gateway.store_delivered(session_id, Marks(sent=seq, acked=seq))
    return stored.delivered_seq if delivered is None else delivered


_REHEARSED = re.compile("[0-9]{1,9}")

STOP_SECONDS = 5.0
STOP_POLL_SECONDS = 0.05
