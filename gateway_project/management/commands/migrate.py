"""``manage.py migrate`` under running gateways: Django's own, but nobody has to wait for it.

Most migrations need a lock for a moment that conflicts with every flush of a token log. Such a lock
queues behind whoever reads the table (a backup, a reconciliation), and every flush then queues behind
it. So a lock is given up after ``--lock-seconds``, the migration is rolled back whole, and tried again
a second later, for up to ``--patience`` seconds. Of several that run at once, one migrates at a time.

It has to reach PostgreSQL itself, not through a pooler: what it sets is set for its session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

LOCK_SECONDS = 0.2
PATIENCE = 300.0
PAUSE = 1.0
ONE_AT_A_TIME = 0x756E_6272_6D69_6772
"""The advisory lock of whoever migrates; an arbitrary number that nobody else takes."""

# Who is in the way is seen best by how long its transaction has been open.
OLDEST = """
SELECT pid, application_name, extract(epoch FROM now() - xact_start)::int, left(query, 80)
FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 3
"""


class Command(migrate.Command):
    """Raises ``CommandError`` when its patience is over; nothing is half done then."""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-seconds",
            type=float,
            default=LOCK_SECONDS,
            help="How long a flush of the token log may have to wait for it (0: as long as it takes).",
        )
        parser.add_argument(
            "--patience",
            type=float,
            default=PATIENCE,
            help="How many seconds to try again for, where somebody else has the locks.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        lock_seconds = options.pop("lock_seconds", LOCK_SECONDS)
        give_up = time.monotonic() + options.pop("patience", PATIENCE)
        connection = connections[options.get("database") or DEFAULT_DB_ALIAS]
        if connection.vendor != "postgresql":
            super().handle(*args, **options)
            return
        with _one_at_a_time(connection), _impatient(connection, lock_seconds):
            while True:
                try:
                    super().handle(*args, **options)
                    return
                except OperationalError as error:
                    if not _is_about_locks(error):
                        raise
                    if time.monotonic() >= give_up:
                        raise CommandError(_in_the_way(connection)) from error
                    self.stdout.write("\n  somebody else has the lock; it is tried again")
                time.sleep(PAUSE)


def _is_about_locks(error: OperationalError) -> bool:
    causes = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
    return isinstance(error.__cause__, causes)


@contextmanager
def _one_at_a_time(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Hold the lock by a connection of its own: it goes with whoever dies.

    Outside a transaction: an idle one is ended where ``idle_in_transaction_session_timeout`` is set,
    and would be told as the oldest that is in the way.
    """
    with closing(psycopg.connect(**connection.get_connection_params(), autocommit=True)) as other:
        other.execute("SET idle_session_timeout = 0")
        other.execute("SELECT pg_advisory_lock(%s)", [ONE_AT_A_TIME])
        yield


@contextmanager
def _impatient(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds * 1000:.0f}ms"])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


def _in_the_way(connection: BaseDatabaseWrapper) -> str:
    with connection.cursor() as cursor:
        cursor.execute(OLDEST)
        lines = [
            f"  pid {pid} ({name or 'no name'}), open for {age} s: {query}"
            for pid, name, age, query in cursor.fetchall()
        ]
    return "\n".join(["It could not get its locks. The oldest transactions are", *lines])
