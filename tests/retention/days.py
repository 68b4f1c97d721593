"""Partitions and sessions whose time is over, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connection
from django.utils import timezone

from streaming.models import StreamSession
from streaming.services.partitions import TABLE, Partition, today
from streaming.services.sql import rows


def due_partition() -> Partition:
    """The one of today, as it was made a month ago."""
    partition = Partition(today())
    with connection.cursor() as cursor:
        for statement in making(partition):
            cursor.execute(statement)
    return partition


def making(partition: Partition) -> tuple[str, str]:
    """The statements that make it."""
    return (
        f"CREATE TABLE {partition.table} (LIKE {TABLE} INCLUDING DEFAULTS)",
        f"ALTER TABLE {TABLE} ATTACH PARTITION {partition.table} FOR VALUES"
        f" FROM ('{partition.day}') TO ('{partition.day + timedelta(days=1)}')",
    )


def long_ago(*sessions: StreamSession, days: int = 40) -> datetime:
    """Have them begun and ended then; when that was."""
    at = timezone.now() - timedelta(days=days)
    ids = [session.pk for session in sessions]
    StreamSession.objects.filter(pk__in=ids).update(
        created_at=at, ended_at=at, state="completed", completion_tokens=3
    )
    return at


def partition_of(session: StreamSession) -> str:
    """The table in which its log is."""
    found = rows(
        f"SELECT DISTINCT tableoid::regclass::text FROM {TABLE} WHERE session_id = %s", session.pk
    )
    ((table,),) = found
    return str(table)


def parameters() -> dict[str, Any]:
    """How others connect to the tests' database."""
    known = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    return {name: known[name] for name in names if known.get(name)}


@contextmanager
def rival(*, autocommit: bool = False) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Somebody else, in a transaction from the first statement on."""
    with psycopg.connect(**parameters(), autocommit=autocommit) as other:
        yield other
