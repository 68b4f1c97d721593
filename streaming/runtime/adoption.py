"""Taking a session over: from a process that died, or out of suspension.

Takeover is the compare-and-set of ``epoch`` in ``session_fence``, nothing else; whoever wins it is
the owner. What the winner needs stands in PostgreSQL: request, seed, prompt ids, the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import psycopg
from psycopg_pool import AsyncConnectionPool

from streaming.core.chat import parse_chat_request
from streaming.core.delivery import Marks
from streaming.core.levels import Level
from streaming.core.state import SessionState
from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.runtime.ending import SUSPENDED_BY
from streaming.runtime.live import LiveSession, Principal, SessionEnd
from streaming.runtime.log_reader import StoredLog
from streaming.runtime.runner import Resumption
from streaming.runtime.token_log import SessionLog

_STORED = f"""
SELECT s.id, s.reference, s.tenant_id, t.name, s.api_key_id, s.end_user, s.on_disconnect, s.model, s.seed,
    s.request, s.prompt_token_ids, s.prompt_tokens, s.state, s.finish_reason, s.error_code, s.cause,
    s.owner_id, s.protocol, s.created_at, s.ended_at, s.resume_until, s.purged_at,
    s.completion_tokens, s.failovers, s.discarded_tokens, f.epoch, f.durable_seq, f.delivered_seq,
    f.sent_seq, f.taken_seq, f.cursor_seq, f.acked_seq, s.cached_prompt_tokens, f.stop_requested,
    f.continue_requested, f.expires_on, s.level, s.variant, s.request_id,
    s.evidence, {SUSPENDED_BY}, coalesce(s.resume_until < now(), false), {OWNER_IS_DEAD}
FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
JOIN streaming_tenant t ON t.id = s.tenant_id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.id = ANY(%s)
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
    sent_seq: int
    taken_seq: int
    cursor_seq: int
    acked_seq: int
    cached_prompt_tokens: int | None
    stop_requested: bool
    continue_requested: bool
    """Somebody wants it finished, whoever reads it."""
    expires_on: date
    level: str
    variant: str
    request_id: str
    evidence: dict[str, Any]
    error: dict[str, Any] | None
    """That has suspended it."""
    window_is_over: bool
    """Suspended, and nobody has come back in time."""
    owner_is_dead: bool

    @property
    def marks(self) -> Marks:
        """How far its readers have come, as far as is stored."""
        return Marks(self.sent_seq, self.taken_seq, self.cursor_seq, self.acked_seq)

    @property
    def ended(self) -> bool:
        return self.state.is_end

    def may_be_taken_by(self, instance_id: int) -> bool:
        """Nobody works on it. (One's own may be taken by whoever has lost its runner.)"""
        if self.ended:
            return False
        is_own = self.owner_id == instance_id
        return self.state is SessionState.SUSPENDED or self.owner_is_dead or is_own

    def end_now(self, wanted: SessionEnd | None) -> SessionEnd | None:
        """How it has to end when it is taken over; None: it goes on.

        What was told to stop is stopped, whatever a sweeper would have made of it.
        """
        if self.stop_requested:
            return SessionEnd(SessionState.STOPPED, cause="client_stop")
        if wanted is None and self.window_is_over:
            return SessionEnd(SessionState.ABANDONED, cause="abandoned")
        return wanted

    def may_end_as(self, end: SessionEnd | None) -> bool:
        """Whether that is still what has to become of it: others may have been faster."""
        if end is not None and end.state is SessionState.SUSPENDED:
            return self.state is not SessionState.SUSPENDED
        return end is None or end.state is not SessionState.ABANDONED or self.window_is_over

    def belongs_to(self, principal: Principal) -> bool:
        """Whether the principal may see it: same tenant, and same end user."""
        return (self.tenant_id, self.end_user) == (principal.tenant_id, principal.end_user)


async def stored_session(pool: AsyncConnectionPool, session_id: UUID) -> StoredSession | None:
    """The session, or None when there is none."""
    async with pool.connection() as connection:
        found = await read_sessions(connection, [session_id])
    return found[0] if found else None


async def read_sessions(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], session_ids: list[UUID]
) -> list[StoredSession]:
    """Those that there are."""
    cursor = await connection.execute(_STORED, (session_ids,))
    rows = [list(row) for row in await cursor.fetchall()]
    for row in rows:
        row[12] = SessionState(row[12])
    return [StoredSession(*row) for row in rows]


# The log's length is compared too: an owner that is not dead after all may have ended it just now.
# Nobody waits: a row that is locked is being written by an owner or taken by somebody else.
_TAKE_OVER = """
WITH free AS (
    SELECT f.session_id, b.former FROM session_fence f
    JOIN unnest(%s::uuid[], %s::int8[], %s::int8[], %s::int8[])
        AS b(session_id, epoch, durable_seq, former)
        ON b.session_id = f.session_id AND b.epoch = f.epoch AND b.durable_seq = f.durable_seq
    FOR UPDATE OF f SKIP LOCKED
), won AS (
    UPDATE session_fence f SET epoch = f.epoch + 1, readers_until = NULL
    FROM free WHERE f.session_id = free.session_id
    RETURNING f.session_id, f.epoch, f.durable_seq, f.expires_on, free.former
), taken AS (
    UPDATE streaming_streamsession s
    SET owner_id = %s, state = 'recovering', error_code = '', cause = '', evidence = '{}',
        resume_until = NULL
    FROM won WHERE s.id = won.session_id
), told AS (
    INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
    SELECT session_id, clock_timestamp(), 'taken_over', durable_seq,
        jsonb_build_object('from', former, 'to', %s::int8, 'reason', %s::text)
    FROM won
), closed AS (  -- what the former owner can no longer write down
    UPDATE streaming_attempt a SET ended_at = clock_timestamp(), end_reason = %s, reclaim = 'pending',
        cause = 'gateway_crash', evidence = jsonb_build_object(
            'because', 'The gateway process that owned it died.', 'gateway', won.former)
    FROM won WHERE a.session_id = won.session_id AND a.ended_at IS NULL
    RETURNING a.session_id, a.node_id, a.number, a.engine_request_id
)
SELECT session_id, epoch,
    greatest(  -- the last attempt may not have been noted yet, though its tokens are there
        (SELECT max(number) FROM streaming_attempt a WHERE a.session_id = won.session_id),
        (SELECT max(attempt) FROM streaming_tokencheckpoint c WHERE c.session_id = won.session_id
            AND c.expires_on = won.expires_on AND c.expires_on = ANY(%s)),
        0),
    (SELECT coalesce(jsonb_agg(jsonb_build_array(node_id, number, engine_request_id)), '[]')
        FROM closed WHERE closed.session_id = won.session_id)
FROM won
"""


class LeftBehind(NamedTuple):
    """An attempt that its gateway process left at its engine when it died."""

    node_id: int | None
    number: int
    request_id: str


class Taken(NamedTuple):
    """A session that was won: its new epoch, and what there was of attempts."""

    epoch: int
    last_attempt: int
    left_behind: list[LeftBehind]


async def take_over(
    connection: psycopg.AsyncConnection[tuple[Any, ...]],
    seen: Sequence[StoredSession],
    instance_id: int,
    reason: str,
) -> dict[UUID, Taken]:
    """Become the owner of those sessions that still stand as they were seen; which were won.

    One statement, however many they are: all sessions of a process may have to be taken over at once.
    """
    cursor = await connection.execute(
        _TAKE_OVER,
        (
            [stored.id for stored in seen],
            [stored.epoch for stored in seen],
            [stored.durable_seq for stored in seen],
            [stored.owner_id for stored in seen],
            instance_id,
            instance_id,
            reason,
            reason,
            list({stored.expires_on for stored in seen}),
        ),
        prepare=False,  # planned for these days, so that no other partition is touched
    )
    return {
        session_id: Taken(epoch, last_attempt, [LeftBehind(*attempt) for attempt in left_behind])
        for session_id, epoch, last_attempt, left_behind in await cursor.fetchall()
    }


def restore(
    stored: StoredSession,
    stored_log: StoredLog,
    taken: Taken,
    notify: Callable[[SessionLog], None],
    end: SessionEnd | None,
) -> tuple[LiveSession, Resumption]:
    """The live session and its runner's state, as the new owner goes on with them.

    ``end``: the session was taken over only to end so. A log whose digest is not what was stored
    with it ends the session too: nobody may go on from tokens that are not the reader's.
    """
    log = SessionLog(stored.id, taken.epoch, notify)
    log.continue_from(stored_log.token_ids, stored_log.digest, stored.marks, stored_log.ends_surely)
    if end is not None and end.state is SessionState.ABANDONED and stored.error is not None:
        end = replace(end, cause=stored.cause, evidence=stored.evidence, error=stored.error)
    if not stored_log.is_intact:
        end = _broken("log_corrupt", "The stored answer does not match its digest.")
    try:
        request = parse_chat_request(orjson.loads(stored.request))
    except ValueError:
        # Stored by a version that took more than this one, or damaged.
        request = parse_chat_request(_NO_REQUEST)
        end = _broken("request_unreadable", "The stored request cannot be read any more.")
    principal = Principal(
        stored.tenant_id,
        stored.tenant,
        stored.api_key_id,
        end_user=stored.end_user,
        on_disconnect="finish" if stored.continue_requested else stored.on_disconnect,
        level=Level(stored.level or Level.STANDARD),
        variant=stored.variant,
    )
    session = LiveSession(
        id=stored.id,
        reference=stored.reference,
        principal=principal,
        request=request,
        model=stored.model,
        seed=stored.seed,
        log=log,
        request_id=stored.request_id,
        created=int(stored.created_at.timestamp()),
        state=stored.state if end is not None else SessionState.RECOVERING,
        finish_reason=stored.finish_reason,
        prompt_tokens=stored.prompt_tokens,
        cached_prompt_tokens=stored.cached_prompt_tokens,
        end_request=end,
    )
    prompt = None if stored.prompt_token_ids is None else array("i", stored.prompt_token_ids)
    return session, Resumption(
        prompt, taken.last_attempt, stored.failovers, stored.discarded_tokens, stored.resume_until
    )


_NO_REQUEST = {"model": "-", "messages": [{"role": "user", "content": "-"}]}


def _broken(code: str, message: str) -> SessionEnd:
    """The end of a session that cannot be gone on with, whoever takes it over."""
    error = {
        "message": message,
        "type": "server_error",
        "param": None,
        "code": code,
        "resumable": False,
    }
    return SessionEnd(SessionState.FAILED, cause=code, error=error)


# Sessions whose owner is gone and that nobody reads: a gateway must say what becomes of them.
# After a crash their readers have the grace period to come back: it was not they who left.
ORPHANS = f"""
SELECT s.id, CASE WHEN f.continue_requested THEN 'finish' ELSE s.on_disconnect END,
    s.state = 'suspended' FROM streaming_streamsession s
JOIN session_fence f ON f.session_id = s.id
LEFT JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.ended_at IS NULL AND CASE WHEN s.state = 'suspended' THEN s.resume_until < now()
    ELSE coalesce(f.readers_until < now(), true) AND {OWNER_IS_DEAD} AND (i.id IS NULL
        OR i.stopped_at IS NOT NULL OR i.heartbeat_at < now() - make_interval(secs => %s)) END
LIMIT 50
"""

# What somebody at the support desk wants continued although nobody has come back for it, and what was
# told to stop in the moment in which it was suspended: whoever had it has not seen that any more.
# What an error has suspended waits a little; so does what is to be finished without a reader anyway.
WANTED = """
SELECT f.session_id, CASE WHEN f.stop_requested THEN 'client_stop'
    WHEN f.continue_requested THEN 'continued_by_staff' ELSE 'resumed' END
FROM session_fence f
JOIN streaming_streamsession s ON s.id = f.session_id
WHERE s.state = 'suspended' AND s.ended_at IS NULL AND (f.stop_requested OR s.resume_until >= now()
    AND CASE WHEN s.error_code = '' THEN f.continue_requested
        ELSE (f.continue_requested OR s.on_disconnect = 'finish')
            AND s.suspended_at < now() - interval '10 seconds' END)
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
