"""What the journal writes besides tokens, and the SQL for each kind.

All records of one kind in a flush go to PostgreSQL as one JSON array, in one statement. JSON
cannot hold NUL or lone surrogates there, so text that comes from outside passes ``printable``.
"""

from __future__ import annotations

import base64
import enum
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from streaming.core.retention import KEPT, LONGEST


class RecordKind(enum.Enum):
    """The order is the order of writing within a flush."""

    SESSION_CREATED = "session_created"
    SESSION_CHANGED = "session_changed"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_ENDED = "attempt_ended"
    EVENT = "event"
    OUTBOX = "outbox"


class Record(NamedTuple):
    """``values`` has the columns of the kind's statement; absent ones are null (or unchanged)."""

    kind: RecordKind
    values: dict[str, Any]


def now() -> datetime:
    return datetime.now(UTC)


def printable(text: str, limit: int) -> str:
    """``text`` as it can be stored in a text column: no NUL, no lone surrogates, not too long."""
    return text[:limit].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def session_changed(session_id: UUID, **columns: Any) -> Record:
    """New values of a session's columns; those that are None stay as they are."""
    values = {name: value for name, value in columns.items() if value is not None}
    return Record(RecordKind.SESSION_CHANGED, {"id": session_id, **values})


def audit_record(
    action: str, *, subject: str, tenant_id: int, session_id: UUID, **data: str | int
) -> Record:
    """What the gateway itself has done, for the audit log; see ``services.audit``."""
    said = {
        "action": action, "actor": "system", "subject": subject, "tenant_id": tenant_id, "data": data,
    }  # fmt: skip
    return Record(
        RecordKind.OUTBOX,
        {"session_id": session_id, "kind": "audit", "created_at": now(), "data": said},
    )


def packed(data: bytes | None) -> str | None:
    """Bytes on their way through JSON to a bytea column."""
    return None if data is None else base64.b64encode(data).decode()


# ``core.retention.expiry_day``; the tenant's own days come first.
_EXPIRY_DAY = f"""
CASE WHEN coalesce(t.content_days, r.content_days) BETWEEN 1 AND {LONGEST}
    THEN (r.created_at AT TIME ZONE 'UTC')::date + coalesce(t.content_days, r.content_days) + 1
    ELSE date '{KEPT}' END
"""

STATEMENTS: dict[RecordKind, str] = {
    # The fence row comes with the session; a session is in one process until somebody takes it over.
    RecordKind.SESSION_CREATED: f"""
        WITH r AS (SELECT r.*, {_EXPIRY_DAY} AS expires_on FROM jsonb_to_recordset(%s::jsonb) AS r(
            id uuid, reference text, tenant_id bigint, api_key_id bigint, end_user text,
            request_id text, protocol text, model text, model_requested text, request text,
            seed bigint, state text, owner_id bigint, created_at timestamptz, epoch bigint, on_disconnect text,
            content_days int, level text, variant text, embed_token_id uuid) LEFT JOIN streaming_tenant t ON t.id = r.tenant_id),
        fence AS (INSERT INTO session_fence (session_id, epoch, durable_seq, stop_requested, expires_on)
            SELECT id, epoch, 0, false, expires_on FROM r)
        INSERT INTO streaming_streamsession (id, reference, tenant_id, api_key_id, end_user,
            request_id, protocol, model, model_requested, request, seed, state, owner_id, created_at,
            on_disconnect, expires_on, level, variant, embed_token_id, finish_reason, error_code, cause, evidence, completion_tokens, discarded_tokens, failovers)
        SELECT id, reference, tenant_id, api_key_id, end_user, request_id, protocol, model,
            model_requested, decode(request, 'base64'), seed, state, owner_id, created_at,
            on_disconnect, expires_on, coalesce(level, ''), coalesce(variant, ''), embed_token_id, '', '', '', '{{}}', 0, 0, 0 FROM r""",
    RecordKind.SESSION_CHANGED: """
        UPDATE streaming_streamsession s SET
            state = coalesce(r.state, s.state),
            prompt_token_ids = coalesce(decode(r.prompt_token_ids, 'base64'), s.prompt_token_ids),
            prompt_tokens = coalesce(r.prompt_tokens, s.prompt_tokens),
            finish_reason = coalesce(r.finish_reason, s.finish_reason),
            error_code = coalesce(r.error_code, s.error_code),
            cause = coalesce(r.cause, s.cause),
            evidence = coalesce(r.evidence, s.evidence),
            completion_tokens = coalesce(r.completion_tokens, s.completion_tokens),
            discarded_tokens = coalesce(r.discarded_tokens, s.discarded_tokens),
            failovers = coalesce(r.failovers, s.failovers),
            suspended_at = coalesce(r.suspended_at, s.suspended_at),
            resume_until = coalesce(r.resume_until, s.resume_until),
            cached_prompt_tokens = coalesce(r.cached_prompt_tokens, s.cached_prompt_tokens),
            first_token_at = coalesce(r.first_token_at, s.first_token_at),
            ended_at = coalesce(r.ended_at, s.ended_at),
            health = least(r.health, s.health),
            content_action = coalesce(r.content_action, s.content_action),
            content_rule = coalesce(r.content_rule, s.content_rule),
            review = CASE WHEN s.review = '' THEN coalesce(r.review, '') ELSE s.review END
        FROM jsonb_to_recordset(%s::jsonb) AS r(
            id uuid, state text, prompt_token_ids text, prompt_tokens int, finish_reason text,
            error_code text, cause text, evidence jsonb, completion_tokens int,
            discarded_tokens int, failovers int, first_token_at timestamptz, ended_at timestamptz,
            suspended_at timestamptz, resume_until timestamptz, cached_prompt_tokens int, health smallint,
            content_action text, content_rule text, review text)
        WHERE s.id = r.id""",
    RecordKind.ATTEMPT_STARTED: """
        INSERT INTO streaming_attempt (session_id, number, epoch, node_id, node_name,
            engine_request_id, seam_grade, seam_note, started_at, kind, end_reason, end_detail,
            discarded_tokens)
        SELECT session_id, number, epoch, node_id, node_name, engine_request_id, seam_grade,
            seam_note, started_at, kind, '', '', 0
        FROM jsonb_to_recordset(%s::jsonb) AS r(
            session_id uuid, number smallint, epoch bigint, node_id bigint, node_name text,
            engine_request_id text, seam_grade text, seam_note text, started_at timestamptz, kind text)""",
    RecordKind.ATTEMPT_ENDED: """
        UPDATE streaming_attempt a SET
            first_token_at = r.first_token_at, ended_at = r.ended_at, first_seq = r.first_seq,
            last_seq = r.last_seq, end_reason = r.end_reason, end_detail = r.end_detail,
            seam_grade = r.seam_grade, ttft_ms = r.ttft_ms, detection_ms = r.detection_ms,
            recovery_ms = r.recovery_ms, cached_prompt_tokens = r.cached_prompt_tokens,
            discarded_tokens = coalesce(r.discarded_tokens, 0), reclaim = r.reclaim,
            generated_tokens = coalesce(r.generated_tokens, 0),
            repeated_tokens = coalesce(r.repeated_tokens, 0),
            engine_prompt_tokens = r.engine_prompt_tokens,
            engine_completion_tokens = r.engine_completion_tokens
        FROM jsonb_to_recordset(%s::jsonb) AS r(
            session_id uuid, number smallint, first_token_at timestamptz, ended_at timestamptz,
            first_seq bigint, last_seq bigint, end_reason text, end_detail text, seam_grade text,
            ttft_ms float8, detection_ms float8, recovery_ms float8, cached_prompt_tokens int,
            discarded_tokens int, reclaim text, generated_tokens int, repeated_tokens int,
            engine_prompt_tokens int, engine_completion_tokens int)
        WHERE a.session_id = r.session_id AND a.number = r.number""",
    RecordKind.EVENT: """
        INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
        SELECT session_id, at, kind, seq, coalesce(data, '{}')
        FROM jsonb_to_recordset(%s::jsonb) AS r(
            session_id uuid, at timestamptz, kind text, seq bigint, data jsonb)""",
    RecordKind.OUTBOX: """
        INSERT INTO streaming_outboxmessage (session_id, kind, data, created_at)
        SELECT session_id, kind, coalesce(data, '{}'), created_at
        FROM jsonb_to_recordset(%s::jsonb) AS r(
            session_id uuid, kind text, data jsonb, created_at timestamptz)""",
}
