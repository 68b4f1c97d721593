"""What may be done to sessions: create, read, leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.chat import ChatRequest
from streaming.core.ids import new_seed, reference_code, uuid7
from streaming.core.state import SessionState
from streaming.errors import InvalidRequest, JournalUnavailable, ModelNotFound, NoHealthyNode
from streaming.runtime.gateway import Gateway
from streaming.runtime.journal import down_too_long, record_event
from streaming.runtime.live import LiveSession, Principal, SessionEnd
from streaming.runtime.log_reader import slice_from_database
from streaming.runtime.records import Record, RecordKind, now, packed
from streaming.runtime.token_log import LogSlice, SessionLog

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
) -> LiveSession:
    """Start a session. Its runner waits until it is durable before it asks an engine.

    Raises ``ModelNotFound``, ``NoHealthyNode``, ``Overloaded``, ``ShuttingDown``.
    """
    gateway.admit()
    model = await resolve_model(gateway, principal, request.model)
    session_id = uuid7()
    log = SessionLog(session_id, FIRST_EPOCH, gateway.journal.notify)
    sampled = request.sampling.temperature > 0
    session = LiveSession(
        id=session_id,
        reference=reference_code(),
        principal=replace(principal, end_user=principal.end_user or request.user),
        request=request,
        model=model,
        # A seed is what lets a sampled answer be continued with the same draws where engines can.
        seed=request.sampling.seed
        if request.sampling.seed is not None or not sampled
        else new_seed(),
        log=log,
        rehearsal=rehearsal or [],
    )
    at = now()
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
            },
        ),
        record_event(session.id, "created", 0, at, protocol=protocol),
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
    if not (conf().allow_rehearsal and principal.is_test):
        raise InvalidRequest(
            "Faults may be rehearsed with test keys only, where ALLOW_REHEARSAL is set.",
            param="X-Unbroken-Rehearse",
        )
    kind, _, places = header.partition("@")
    tokens = places.split(",")
    if kind.strip() != "kill" or not all(token.strip().isdecimal() for token in tokens):
        raise InvalidRequest(
            "Use X-Unbroken-Rehearse: kill@50 or kill@50,120.", param="X-Unbroken-Rehearse"
        )
    return sorted({int(token) for token in tokens})


def leave(session: LiveSession) -> None:
    """A reader of a stream that cannot be resumed has gone: with the last one the session ends."""
    session.readers -= 1
    if session.readers == 0:
        session.ask_to_end(SessionEnd(SessionState.CANCELLED, cause="client_gone"))


async def read(gateway: Gateway, session: LiveSession, seq: int) -> AsyncGenerator[LogSlice | None]:
    """Everything durable after ``seq``, as it becomes durable, up to and including the terminal record.

    None is yielded when the session has news of another kind (``session.state``, ``controls``).
    Raises ``session.log.lost`` when the log ends here without its end.
    """
    log = session.log
    while True:
        try:
            piece = log.slice_after(seq)
        except LookupError:
            piece = await slice_from_database(gateway.pool, session.id, seq)
        if piece is not None:
            yield piece
            seq = piece.last_seq
            if piece.terminal is not None:
                return
            continue
        if log.lost is not None:
            raise log.lost
        if down_too_long(gateway.journal):
            raise JournalUnavailable
        await _news(log)
        if log.durable_seq <= seq:
            yield None


async def _news(log: SessionLog) -> None:
    """Wait for a change of the log; look again after a while even without one."""
    try:
        async with asyncio.timeout(5.0):
            await log.changed()
    except TimeoutError:
        pass
