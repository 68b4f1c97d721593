"""Very many sessions with all that the support desk reads of them, made by PostgreSQL itself.

One in 20 was interrupted, one in 10 left by its reader. Half of them are one tenant's.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection

TENANTS = 200
LARGE = (
    "streaming_streamsession", "session_fence", "streaming_attempt", "streaming_sessionevent",
    "streaming_tokencheckpoint", "streaming_idempotencykey",
)  # fmt: skip
"""Tables that no page may read whole."""

FILL = (
    "SET session_replication_role = replica",
    """INSERT INTO streaming_tenant (name, display_name, created_at)
    SELECT 'tenant-' || i, '', now() FROM generate_series(1, {tenants}) i""",
    """INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source, weight,
        options, failover, hedging, defragment, created_at, health, health_reason, models_served)
    SELECT 'gpu-' || i, 'vllm', 'http://gpu-' || i || ':8000', 'active', 'admin', 1, '{{}}', '', '',
        '', now(), 'up', '', '[]' FROM generate_series(0, 39) i""",
    # Their content leaves within the next 30 days, each day with a partition of its own.
    """DO $$ BEGIN
        FOR n IN 1..30 LOOP
            EXECUTE format('CREATE TABLE IF NOT EXISTS checkpoints_%s PARTITION OF streaming_tokencheckpoint'
                ' FOR VALUES FROM (%L) TO (%L)', to_char(current_date + n, 'YYYYMMDD'),
                current_date + n, current_date + n + 1);
        END LOOP;
    END $$""",
    # The newest one began an hour ago, the oldest {days} days before.
    """CREATE TEMP TABLE given AS SELECT i, at, current_date + 1 + i % 30 AS day,
        (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(i::text), 1, 19))::uuid AS id,
        (SELECT min(id) FROM streaming_tenant) + CASE WHEN i % 2 = 0 THEN 0 ELSE i / 2 % {tenants} END
            AS tenant,
        CASE WHEN i % 200 = 0 THEN 'lost' WHEN i % 1000 = 20 THEN 'suspended'
            WHEN i % 20 = 0 THEN 'recovered' WHEN i % 10 = 5 THEN 'left' ELSE '' END AS outcome,
        CASE WHEN i % 10000 = 40 THEN 'content_violation' WHEN i % 10 = 5 THEN 'client_gone'
            ELSE (ARRAY['engine_crash', 'engine_oom', 'engine_frozen', 'network_reset',
                'gateway_crash'])[i / 20 % 5 + 1] END AS cause,
        'gpu-' || i / 20 % 40 AS node
    FROM (SELECT i, now() - interval '1 hour' - ({count} - i) * (interval '{days} days' / {count}) AS at
        FROM generate_series(1, {count}) i) n""",
    """INSERT INTO streaming_streamsession (id, reference, tenant_id, end_user, request_id, protocol,
        model, model_requested, request, prompt_tokens, state, finish_reason, error_code, cause,
        evidence, on_disconnect, completion_tokens, discarded_tokens, failovers, created_at,
        first_token_at, ended_at, outcome, interrupted_at, interrupted_seq, interrupted_node,
        interrupted_cause, seam_grade, gap_ms, noticed, review, expires_on)
    SELECT id, upper(substr(md5(i::text), 1, 3) || '-' || substr(md5(i::text), 4, 3)), tenant,
        CASE WHEN i % 5 = 0 THEN '' ELSE 'user-' || i % 50000 END, 'req-' || md5(i::text), 'openai',
        'model-' || i % 5, 'model-' || i % 5, '{{}}', 12,
        CASE outcome WHEN 'lost' THEN 'failed' WHEN 'suspended' THEN 'suspended' ELSE 'completed' END,
        'stop', '', '', '{{}}', 'suspend', 20 * {rows}, 0, (outcome = 'recovered')::int, at,
        at + interval '1 second', CASE WHEN outcome <> 'suspended' THEN at + interval '9 seconds' END,
        outcome, CASE WHEN outcome <> '' THEN at + interval '5 seconds' END,
        CASE WHEN outcome <> '' THEN 200 END, CASE WHEN outcome IN ('', 'left') THEN '' ELSE node END,
        CASE WHEN outcome <> '' THEN cause ELSE '' END,
        CASE WHEN outcome = 'recovered' THEN 'exact' ELSE '' END,
        CASE WHEN outcome = 'recovered' THEN i % 900 END,
        outcome = 'lost' OR (outcome = 'recovered' AND i % 900 > 300),
        CASE WHEN outcome = 'lost' THEN CASE WHEN i % 2000 = 0 THEN 'assigned' ELSE 'needed' END
            ELSE '' END, day
    FROM given""",
    """INSERT INTO session_fence (session_id, epoch, durable_seq, sent_seq, taken_seq, stop_requested,
        expires_on)
    SELECT id, 1, 20 * {rows} + 1, 20 * {rows}, 20 * {rows}, false, day FROM given""",
    """INSERT INTO streaming_attempt (session_id, number, epoch, node_name, engine_request_id,
        seam_grade, seam_note, started_at, first_token_at, ended_at, first_seq, last_seq, end_reason,
        end_detail, discarded_tokens, detection_ms, recovery_ms, kind, cause)
    SELECT id, n, 1, CASE n WHEN 1 THEN node ELSE 'gpu-0' END, id || '-' || n,
        CASE n WHEN 1 THEN '' ELSE 'exact' END, '', at + (n - 1) * interval '5 seconds',
        at + (n - 1) * interval '5 seconds' + interval '1 second', at + n * interval '5 seconds',
        (n - 1) * 200 + 1, CASE WHEN n = 1 AND outcome IN ('', 'left') THEN 20 * {rows}
            WHEN n = 1 THEN 200 ELSE 20 * {rows} END,
        CASE WHEN n = 1 AND outcome NOT IN ('', 'left') THEN 'connection_reset' ELSE 'finished' END, '', 0,
        20, CASE n WHEN 2 THEN 40 END, CASE n WHEN 1 THEN 'first' ELSE 'failover' END,
        CASE WHEN n = 1 AND outcome NOT IN ('', 'left') THEN cause ELSE '' END
    FROM given, generate_series(1, 2) n WHERE n = 1 OR outcome = 'recovered'""",
    """INSERT INTO streaming_sessionevent (session_id, at, kind, seq, data)
    SELECT id, at + e.after, e.kind, e.seq, '{{}}' FROM given, (VALUES
        (interval '0', 'created', 0), (interval '0', 'reader_joined', 0),
        (interval '9 seconds', 'completed', 400)) AS e(after, kind, seq)""",
    """INSERT INTO streaming_idempotencykey (tenant_id, end_user, key, body_digest, session_id, created_at)
    SELECT tenant, '', 'key-' || i, '', id, at FROM given WHERE i % 10 = 0""",
    """INSERT INTO streaming_tokencheckpoint (session_id, epoch, attempt, first_seq, last_seq, token_ids,
        text, text_ends, digest, created_at, ends_surely, expires_on)
    SELECT id, 1, CASE WHEN outcome = 'recovered' AND n >= 10 THEN 2 ELSE 1 END, n * 20 + 1, n * 20 + 20,
        '\\x01000000', 'text', '\\x04000000', '\\xabababababababababababababababab',
        at + n * interval '400 milliseconds', true, day
    FROM given, generate_series(0, {rows} - 1) n""",
    "SET session_replication_role = origin",
    "ANALYZE",
)  # fmt: skip


def fill(count: int, rows: int, days: int = 90) -> dict[str, Any]:
    """Make ``count`` sessions of ``rows`` checkpoints each; what tests look for among them."""
    given = {"count": count, "rows": rows, "days": days, "tenants": TENANTS}
    with connection.cursor() as cursor:
        for statement in FILL:
            cursor.execute(statement.format(**given))
        cursor.execute("SELECT min(id), max(id) FROM streaming_tenant")
        large, small = cursor.fetchone()
        cursor.execute(
            "SELECT id, 'key-' || i FROM given WHERE i % 20 = 10 ORDER BY i DESC LIMIT 1"
        )
        session, key = cursor.fetchone()
        cursor.execute(
            "SELECT id, reference, request_id FROM streaming_streamsession"
            " WHERE outcome = 'recovered' ORDER BY interrupted_at DESC LIMIT 1"
        )
        interrupted, reference, request_id = cursor.fetchone()
    return {
        "large": large, "small": small, "session": session, "key": key, "interrupted": interrupted,
        "reference": reference, "request_id": request_id, "end_user": "user-4321",
    }  # fmt: skip


def of_session(session_id: UUID) -> str:
    """How its id begins, as somebody may read it out."""
    return str(session_id)[:18]
