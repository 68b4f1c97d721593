"""Whatever changes the story of a session has it told again.

The journal writes these tables in large statements, so a session that nothing interrupts must cost
nothing: PostgreSQL decides by the conditions, before it calls anything. Whoever is noted only adds a
row to a table where nothing is unique and nothing refers to: it waits for nobody.
"""

from django.db import migrations

NOTE = """
CREATE FUNCTION streaming_note_{what}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO streaming_changedsession (session_id) VALUES (new.{column});
    RETURN NULL;
END $$
"""

# How an attempt ends that nothing has interrupted; as in streaming.core.interruptions.
NORMAL = "('', 'finished', 'cancelled', 'overtaken', 'rejected', 'rehearsal', 'migrated')"

# An end that nobody wanted; a cause, which comes later; the end of what went on after an
# interruption, which notes when that was got over.
ATTEMPT = f"""
CREATE TRIGGER streaming_attempt_changed AFTER UPDATE ON streaming_attempt FOR EACH ROW WHEN (
    (new.end_reason <> old.end_reason AND new.end_reason NOT IN {NORMAL})
    OR (new.cause <> old.cause AND new.cause <> '')
    OR (old.ended_at IS NULL AND new.ended_at IS NOT NULL
        AND new.kind IN ('failover', 'resumption', 'hedge'))
) EXECUTE FUNCTION streaming_note_part()
"""

# One that never ran, because its engine could not even be asked, may be written in one go.
ATTEMPT_MADE = f"""
CREATE TRIGGER streaming_attempt_made AFTER INSERT ON streaming_attempt FOR EACH ROW WHEN (
    new.end_reason NOT IN {NORMAL}
) EXECUTE FUNCTION streaming_note_part()
"""

# Beginning and end of a trouble; another owner; and the end of a session that has a story.
SESSION = """
CREATE TRIGGER streaming_session_changed AFTER UPDATE ON streaming_streamsession FOR EACH ROW WHEN (
    (new.state <> old.state AND (
        new.state IN ('recovering', 'suspended', 'cancelled', 'failed', 'abandoned')
        OR old.state IN ('recovering', 'suspended')
        OR (new.ended_at IS NOT NULL AND (new.outcome <> '' OR new.failovers > 0))))
    OR (new.owner_id IS DISTINCT FROM old.owner_id AND old.owner_id IS NOT NULL)
) EXECUTE FUNCTION streaming_note_session()
"""

# A reader who goes before the end, and one who comes back. The first one comes at the beginning.
EVENT = """
CREATE TRIGGER streaming_reader_changed AFTER INSERT ON streaming_sessionevent FOR EACH ROW WHEN (
    new.kind = 'reader_left' OR (new.kind = 'reader_joined' AND new.seq > 0)
) EXECUTE FUNCTION streaming_note_part()
"""

# Evidence of delivery that comes after the end: a reader has come back for an answer that had been
# finished without it. Most sessions with late evidence have no story that it could change.
NOTE_DELIVERED = """
CREATE FUNCTION streaming_note_delivered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO streaming_changedsession (session_id)
    SELECT s.id FROM streaming_streamsession s WHERE s.id = new.session_id AND s.outcome <> '';
    RETURN NULL;
END $$
"""
DELIVERED = """
CREATE TRIGGER streaming_delivered AFTER INSERT ON streaming_outboxmessage FOR EACH ROW WHEN (
    new.kind = 'session_delivered'
) EXECUTE FUNCTION streaming_note_delivered()
"""


class Migration(migrations.Migration):
    dependencies = [("streaming", "0002_storage")]

    operations = [
        migrations.RunSQL(
            [NOTE.format(what="part", column="session_id"), NOTE.format(what="session", column="id")],
            [
                "DROP FUNCTION streaming_note_part",
                "DROP FUNCTION streaming_note_session",
            ],
        ),
        migrations.RunSQL(ATTEMPT, "DROP TRIGGER streaming_attempt_changed ON streaming_attempt"),
        migrations.RunSQL(ATTEMPT_MADE, "DROP TRIGGER streaming_attempt_made ON streaming_attempt"),
        migrations.RunSQL(
            SESSION, "DROP TRIGGER streaming_session_changed ON streaming_streamsession"
        ),
        migrations.RunSQL(EVENT, "DROP TRIGGER streaming_reader_changed ON streaming_sessionevent"),
        migrations.RunSQL(NOTE_DELIVERED, "DROP FUNCTION streaming_note_delivered"),
        migrations.RunSQL(
            DELIVERED, "DROP TRIGGER streaming_delivered ON streaming_outboxmessage"
        ),
    ]
