"""What webhooks are told is written down where it happens, by whoever it happens to.

A session can end in the journal, in a sweeper or by an action: a trigger sees all of them, in their own
transaction. A tenant without an endpoint costs one look at a small table for each session that ends.
Payloads have nothing of what was asked or answered, nor who asked.
"""

from django.db import migrations

# Nobody is waited for: what it adds refers to nothing, and what another has added is left as it is.
ENQUEUE = """
CREATE FUNCTION streaming_enqueue_webhook(what text, tenant bigint, session uuid, told jsonb)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO streaming_webhookdelivery (id, endpoint_id, kind, session_id, payload, state, tries,
        created_at, next_try_at, error)
    SELECT gen_random_uuid(), e.id, what, session, jsonb_build_object(
            'type', what,
            'timestamp',
            to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'data', told),
        'waiting', 0, clock_timestamp(), clock_timestamp(), ''
    FROM streaming_webhookendpoint e
    WHERE e.tenant_id = tenant AND e.is_active
        AND (e.events = '[]' OR e.events @> to_jsonb(what))
    ON CONFLICT DO NOTHING
$$
"""

ABOUT = """
CREATE FUNCTION streaming_about_session(s streaming_streamsession) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'session_id', s.id, 'reference', s.reference, 'request_id', s.request_id, 'state', s.state,
        'model', s.model_requested, 'finish_reason', nullif(s.finish_reason, ''),
        'error_code', nullif(s.error_code, ''), 'cause', nullif(s.cause, ''),
        'created_at', s.created_at, 'ended_at', s.ended_at,
        'resume_until', CASE s.state WHEN 'suspended' THEN s.resume_until END,
        'usage', jsonb_build_object(
            'prompt_tokens', coalesce(s.prompt_tokens, 0), 'completion_tokens', s.completion_tokens,
            'total_tokens', coalesce(s.prompt_tokens, 0) + s.completion_tokens))
$$
"""

# Which state is told as what; as in ``services.webhooks``.
NOTE_SESSION = """
CREATE FUNCTION streaming_tell_webhooks_of_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM streaming_webhookendpoint
               WHERE tenant_id = new.tenant_id AND is_active) THEN
        PERFORM streaming_enqueue_webhook(
            CASE new.state WHEN 'suspended' THEN 'session.suspended'
                WHEN 'completed' THEN 'session.completed' WHEN 'stopped' THEN 'session.completed'
                ELSE 'session.interrupted' END,
            new.tenant_id, new.id, streaming_about_session(new));
    END IF;
    RETURN NULL;
END $$
"""
SESSION = """
CREATE TRIGGER streaming_session_told AFTER UPDATE ON streaming_streamsession FOR EACH ROW WHEN (
    new.state <> old.state
    AND new.state IN ('completed', 'stopped', 'cancelled', 'failed', 'abandoned', 'suspended')
) EXECUTE FUNCTION streaming_tell_webhooks_of_session()
"""

NOTE_FILTERED = """
CREATE FUNCTION streaming_tell_webhooks_of_filtered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM streaming_enqueue_webhook('session.flagged', s.tenant_id, s.id,
        streaming_about_session(s) || jsonb_build_object('seq', new.seq,
            'rule', new.data -> 'rule', 'action', new.data -> 'action'))
    FROM streaming_streamsession s WHERE s.id = new.session_id;
    RETURN NULL;
END $$
"""
FILTERED = """
CREATE TRIGGER streaming_filtered_told AFTER INSERT ON streaming_sessionevent FOR EACH ROW WHEN (
    new.kind = 'filtered' AND new.data ->> 'action' IN ('flag', 'stop')
) EXECUTE FUNCTION streaming_tell_webhooks_of_filtered()
"""


class Migration(migrations.Migration):
    dependencies = [("streaming", "0004_partitions")]

    operations = [
        migrations.RunSQL(
            [ENQUEUE, ABOUT],
            [
                "DROP FUNCTION streaming_about_session",
                "DROP FUNCTION streaming_enqueue_webhook",
            ],
        ),
        migrations.RunSQL(NOTE_SESSION, "DROP FUNCTION streaming_tell_webhooks_of_session"),
        migrations.RunSQL(
            SESSION, "DROP TRIGGER streaming_session_told ON streaming_streamsession"
        ),
        migrations.RunSQL(NOTE_FILTERED, "DROP FUNCTION streaming_tell_webhooks_of_filtered"),
        migrations.RunSQL(
            FILTERED, "DROP TRIGGER streaming_filtered_told ON streaming_sessionevent"
        ),
    ]
