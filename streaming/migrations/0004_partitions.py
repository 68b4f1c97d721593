"""The token log by the day on which it leaves: a day's rows go with their partition, at once.

Rows for which nobody has made a partition are in the default one, so no flush ever fails for want of
one; what is kept for ever has one of its own. Partitions of days are made and dropped by
``services.partitions``, through functions: whoever migrates owns the table, and the gateways' role
should own nothing (docs/audit.md). So the functions refuse by themselves what must not be.
"""

from django.db import migrations

from streaming.core.retention import LONGEST

# The primary key serves every reader: they ask by session, in the order of the log. The id has no
# index; an insert pays for one less.
PARTITIONED = """
ALTER TABLE streaming_tokencheckpoint RENAME TO unpartitioned;
CREATE TABLE streaming_tokencheckpoint (
    LIKE unpartitioned INCLUDING DEFAULTS INCLUDING IDENTITY
) PARTITION BY RANGE (expires_on);
CREATE TABLE checkpoints_kept PARTITION OF streaming_tokencheckpoint
    FOR VALUES FROM ('9999-12-31') TO (MAXVALUE);
CREATE TABLE checkpoints_other PARTITION OF streaming_tokencheckpoint DEFAULT;
INSERT INTO streaming_tokencheckpoint OVERRIDING SYSTEM VALUE SELECT * FROM unpartitioned;
SELECT setval(pg_get_serial_sequence('streaming_tokencheckpoint', 'id'),
    coalesce(max(id), 0) + 1, false) FROM unpartitioned;
DROP TABLE unpartitioned;
ALTER TABLE streaming_tokencheckpoint
    ADD CONSTRAINT one_row_per_seq PRIMARY KEY (session_id, first_seq, expires_on);
CREATE INDEX checkpoints_other_by_day ON checkpoints_other (expires_on);
"""

UNPARTITIONED = """
ALTER TABLE streaming_tokencheckpoint RENAME TO partitioned;
CREATE TABLE streaming_tokencheckpoint (
    LIKE partitioned INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id)
);
INSERT INTO streaming_tokencheckpoint OVERRIDING SYSTEM VALUE SELECT * FROM partitioned;
SELECT setval(pg_get_serial_sequence('streaming_tokencheckpoint', 'id'),
    coalesce(max(id), 0) + 1, false) FROM partitioned;
DROP TABLE partitioned;
ALTER TABLE streaming_tokencheckpoint
    ADD CONSTRAINT one_row_per_seq UNIQUE (session_id, first_seq, expires_on);
"""

# Where the default partition has rows of that day, they stay there, and so do those that come: to move
# them would keep flushes waiting. The table is made first and attached then, because to create it as a
# partition would lock all of the log.
MAKE = f"""
CREATE FUNCTION streaming_make_partition(day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    name text := 'checkpoints_' || to_char(day, 'YYYYMMDD');
    today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    IF day NOT BETWEEN today AND today + {LONGEST + 10} THEN
        RAISE EXCEPTION 'no content leaves on %', day;
    END IF;
    IF to_regclass(name) IS NOT NULL
        OR EXISTS (SELECT FROM checkpoints_other WHERE expires_on = day)
    THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE streaming_tokencheckpoint INCLUDING DEFAULTS)', name);
    EXECUTE format('ALTER TABLE streaming_tokencheckpoint ATTACH PARTITION %I'
        ' FOR VALUES FROM (%L) TO (%L)', name, day, day + 1);
    RETURN true;
END $$
"""

# Only readers of these very rows are in the way, and have to wait.
EMPTY = """
CREATE FUNCTION streaming_empty_partition(day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    name text := 'checkpoints_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass(name) IS NULL THEN  -- another run has dropped it
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', name);
    IF day > (now() AT TIME ZONE 'UTC')::date OR EXISTS (
        SELECT FROM streaming_streamsession WHERE expires_on = day AND purged_at IS NULL
    ) THEN
        RETURN false;
    END IF;
    EXECUTE format('TRUNCATE %I', name);
    RETURN true;
END $$
"""

# For a moment everybody else is locked out of the log.
DROP = """
CREATE FUNCTION streaming_drop_partition(day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    name text := 'checkpoints_' || to_char(day, 'YYYYMMDD');
    has_rows boolean;
BEGIN
    LOCK TABLE ONLY streaming_tokencheckpoint IN ACCESS EXCLUSIVE MODE;
    IF to_regclass(name) IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO has_rows;
    IF has_rows OR day > (now() AT TIME ZONE 'UTC')::date THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', name);
    RETURN true;
END $$
"""

FUNCTIONS = ("streaming_make_partition", "streaming_empty_partition", "streaming_drop_partition")

# A function that runs as the owner must not find its tables where the caller has put others.
SAFELY = """
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION {name}(date) SET search_path = %I, pg_temp', current_schema());
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("streaming", "0003_changes")]

    operations = [
        migrations.RunSQL(PARTITIONED, UNPARTITIONED),
        *(
            migrations.RunSQL([create, SAFELY.format(name=name)], f"DROP FUNCTION {name}")
            for name, create in zip(FUNCTIONS, (MAKE, EMPTY, DROP), strict=True)
        ),
    ]
