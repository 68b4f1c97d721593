"""The token log by the day on which it leaves: a day's rows go with their partition, at once.

Rows for which nobody has made a partition are in the default one, so no flush ever fails for want of
one; what is kept for ever has one of its own. Partitions of days are made and dropped by
``services.partitions``.
"""

from django.db import migrations

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


class Migration(migrations.Migration):
    dependencies = [("streaming", "0003_changes")]

    operations = [migrations.RunSQL(PARTITIONED, UNPARTITIONED)]
