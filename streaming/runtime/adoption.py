"""Taking a session over: from a process that died, or out of suspension.

Takeover is the compare-and-set of ``epoch`` in ``session_fence``, nothing else; whoever wins it is
the owner. What the winner needs stands in PostgreSQL: request, seed, prompt ids, the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from streaming.core.chat import parse_chat_request
from streaming.core.state import SessionState
from streaming.runtime.instance import OWNER_IS_DEAD
from streaming.runtime.live import LiveSession, Principal, SessionEnd
from streaming.runtime.log_reader import read_log
from streaming.runtime.runner import Resumption
from streaming.runtime.token_log import SessionLog

_STORED = f"""
SELECT s.reference, s.tenant_id, t.name, s.api_key_id, s.end_user, s.on_disconnect, s.model, s.seed,
    s.request, s.prompt_token_ids, s.prompt_tokens, s.state, s.finish_reason, s.error_code, s.cause,
    s.owner_id, s.protocol, s.created_at, s.ended_at, s.resume_until, s.purged_at,
    s.completion_tokens, s.failovers, s.discarded_tokens, f.epoch, f.durable_seq, f.delivered_seq,
    f.stop_requested, coalesce(s.resume_until < now(), false), {OWNER_IS_DEAD}
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
JOIN streaming_tenant t ON t.id = s.tenant_id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.id = %s
"""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as PostgreSQL has it."""

    id: UUID
    reference: str
    tenant_id: int
    tenant: str
    api_key_id: int | None
    end_user: str
    on_disconnect: str
    model: str
    seed: int | None
    request: bytes
    prompt_token_ids: bytes | None
    prompt_tokens: int | None
    state: SessionState
    finish_reason: str
    error_code: str
    cause: str
    owner_id: int | None
    protocol: str
    created_at: datetime
    ended_at: datetime | None
    resume_until: datetime | None
    purged_at: datetime | None
    completion_tokens: int
    failovers: int
    discarded_tokens: int
    epoch: int
    durable_seq: int
    delivered_seq: int
    stop_requested: bool
    window_is_over: bool
    """Suspended, and nobody has come back in time."""
    owner_is_dead: bool

    @property
    def ended(self) -> bool:
        return self.state.is_end

    def may_be_taken_by(self, instance_id: int) -> bool:
        """Nobody works on it. (One's own may be taken by whoever has lost its runner.)"""
        if self.ended:
            return False
        is_own = self.owner_id == instance_id
        return self.state is SessionState.SUSPENDED or self.owner_is_dead or is_own

    def may_end_as(self, state: SessionState) -> bool:
        """Whether that is still what has to become of it: others may have been faster."""
        if state is SessionState.SUSPENDED:
            return self.state is not SessionState.SUSPENDED
        return state is not SessionState.ABANDONED or self.window_is_over

    def belongs_to(self, principal: Principal) -> bool:
        """Whether the principal may see it: same tenant, and same end user."""
        return (self.tenant_id, self.end_user) == (principal.tenant_id, principal.end_user)


async def stored_session(pool: AsyncConnectionPool, session_id: UUID) -> StoredSession | None:
    """The session, or None when there is none."""
    async with pool.connection() as connection:
        return await read_session(connection, session_id)


async def read_session(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], session_id: UUID
) -> StoredSession | None:
    """As ``stored_session``."""
    cursor = await connection.execute(_STORED, (session_id,))
    row = await cursor.fetchone()
    if row is None:
        return None
    values = list(row)
    values[11] = SessionState(values[11])
    return StoredSession(session_id, *values)


# The log's length is compared too: an owner that is not dead after all may have ended it just now.
_TAKE_OVER = """
WITH won AS (
    UPDATE session_fence SET epoch = epoch + 1, readers_until = NULL
    WHERE session_id = %s AND epoch = %s AND durable_seq = %s
    RETURNING session_id, epoch, durable_seq
), taken AS (
    UPDATE streaming_streamsession s
    SET owner_id = %s, state = 'recovering', cause = '', resume_until = NULL
    FROM won WHERE s.id = won.session_id
), told AS (
    INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
    SELECT session_id, clock_timestamp(), 'taken_over', durable_seq, %s::jsonb FROM won
), closed AS (  -- what the former owner can no longer write down
    UPDATE streaming_attempt a SET ended_at = clock_timestamp(), end_reason = %s
    FROM won WHERE a.session_id = won.session_id AND a.ended_at IS NULL
)
SELECT epoch, (SELECT coalesce(max(number), 0) FROM streaming_attempt a WHERE a.session_id = won.session_id)
FROM won
"""


async def take_over(
    connection: psycopg.AsyncConnection[tuple[Any, ...]],
    stored: StoredSession,
    instance_id: int,
    reason: str,
) -> tuple[int, int] | None:
    """Become the owner of a session that stands as ``stored`` says: the new epoch, and the number
    of its last attempt.

    None: somebody else was faster, or it has ended. One statement: whoever waits for a fence row
    is never kept waiting for us.
    """
    why = orjson.dumps({"from": stored.owner_id, "to": instance_id, "reason": reason}).decode()
    cursor = await connection.execute(
        _TAKE_OVER,
        (stored.id, stored.epoch, stored.durable_seq, instance_id, why, reason),
    )
    return cast("tuple[int, int] | None", await cursor.fetchone())


async def restore(
    connection: psycopg.AsyncConnection[tuple[Any, ...]],
    stored: StoredSession,
    epoch: int,
    attempts: int,
    notify: Callable[[SessionLog], None],
    end: SessionEnd | None,
) -> tuple[LiveSession, Resumption]:
    """The live session and its runner's state, as the new owner goes on with them.

    ``end``: the session was taken over only to end so. A log whose digest is not what was stored
    with it ends the session too: nobody may go on from tokens that are not the reader's.
    """
    token_ids, digest, intact = await read_log(connection, stored.id)
    log = SessionLog(stored.id, epoch, notify)
    log.continue_from(token_ids, digest, stored.delivered_seq)
    if not intact:
        end = SessionEnd(
            SessionState.FAILED,
            cause="log_corrupt",
            error={
                "message": "The stored answer does not match its digest.",
                "type": "server_error",
                "param": None,
                "code": "log_corrupt",
                "resumable": False,
            },
        )
    principal = Principal(
        stored.tenant_id,
        stored.tenant,
        stored.api_key_id,
        end_user=stored.end_user,
        on_disconnect=stored.on_disconnect,
    )
    session = LiveSession(
        id=stored.id,
        reference=stored.reference,
        principal=principal,
        request=parse_chat_request(orjson.loads(stored.request)),
        model=stored.model,
        seed=stored.seed,
        log=log,
        created=int(stored.created_at.timestamp()),
        state=stored.state if end is not None else SessionState.RECOVERING,
        prompt_tokens=stored.prompt_tokens,
        end_request=end,
    )
    prompt = (
        None if stored.prompt_token_ids is None else array("i", stored.prompt_token_ids).tolist()
    )
    return session, Resumption(prompt, attempts, stored.failovers, stored.discarded_tokens)


# Sessions whose owner is gone and that nobody reads: a gateway must say what becomes of them.
# After a crash their readers have the grace period to come back: it was not they who left.
ORPHANS = f"""
SELECT s.id, s.on_disconnect, s.state = 'suspended' FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.ended_at IS NULL AND CASE WHEN s.state = 'suspended' THEN s.resume_until < now()
    ELSE coalesce(f.readers_until < now(), true) AND {OWNER_IS_DEAD} AND (i.id IS NULL
        OR i.stopped_at IS NOT NULL OR i.heartbeat_at < now() - make_interval(secs => %s)) END
LIMIT 50
"""

OWNED = """
SELECT id FROM streaming_streamsession
WHERE owner_id = %s AND ended_at IS NULL AND state <> 'suspended'
"""


def end_of_orphan(on_disconnect: str, suspended: bool) -> SessionEnd | None:
    """What becomes of an orphan; None: it is finished without a reader."""
    if suspended:
        return SessionEnd(SessionState.ABANDONED, cause="abandoned")
    if on_disconnect == "finish":
        return None
    state = SessionState.CANCELLED if on_disconnect == "cancel" else SessionState.SUSPENDED
    return SessionEnd(state, cause="gateway_crash")
