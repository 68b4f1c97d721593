"""The token log by days: partitions are there ahead, go as a whole, and are in nobody's way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest
from django.db import ProgrammingError, connection
from django.utils import timezone

from streaming.conf import conf
from streaming.core.ids import uuid7
from streaming.core.retention import KEPT, LONGEST, began_before, expiry_day
from streaming.models import SessionFence, StreamSession, Tenant, TokenCheckpoint
from streaming.runtime.log_reader import read_logs
from streaming.runtime.records import STATEMENTS, RecordKind
from streaming.services import partitions
from streaming.services.partitions import (
    OTHERS,
    Partition,
    drop_partitions,
    make_partitions,
    today,
)
from streaming.services.purge import purge_expired_content, purge_session
from streaming.services.sql import rows
from tests.retention.days import due_partition, long_ago, parameters, partition_of, rival
from tests.tasks.rows import add_session, run_together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def made_here() -> Iterator[None]:
    """What a test has made goes with it."""
    before = {partition.day for partition in partitions.partitions()}
    yield
    with connection.cursor() as cursor:
        for partition in partitions.partitions():
            if partition.day not in before:
                cursor.execute(f"DROP TABLE {partition.table}")


def days_there() -> set[date]:
    return {partition.day for partition in partitions.partitions()}


def test_days_are_counted_from_the_day_on_which_a_session_began():
    late = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    assert expiry_day(late, 1) == date(2026, 12, 2)  # never less than a whole day
    assert expiry_day(late, 30) == date(2026, 12, 31)
    assert expiry_day(late, LONGEST) == date(2028, 1, 5)
    assert expiry_day(late, 0) == expiry_day(late, LONGEST + 1) == KEPT
    for days in (1, 7, 30):
        day = expiry_day(late, days)
        assert late < began_before(day, days)
        assert late >= began_before(day - timedelta(days=1), days)


@pytest.mark.parametrize("days", [None, 0, 1, 77, LONGEST, LONGEST + 1, 2**31 - 1])
def test_the_journal_fixes_the_day_with_the_session(days):
    tenant = Tenant.objects.create(name="own", content_days=days)
    at = datetime(2026, 11, 30, 23, 59, 59, 999999, tzinfo=UTC)
    row = {
        "id": uuid7(), "reference": "K7Q-4MX", "tenant_id": tenant.pk, "api_key_id": None,
        "end_user": "", "request_id": "", "protocol": "openai", "model": "m",
        "model_requested": "m", "request": "", "seed": None, "state": "created", "owner_id": None,
        "created_at": at, "epoch": 1, "on_disconnect": "suspend", "content_days": 30,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(STATEMENTS[RecordKind.SESSION_CREATED], [orjson.dumps([row]).decode()])
    due = expiry_day(at, 30 if days is None else days)
    assert StreamSession.objects.get().expires_on == due
    assert SessionFence.objects.get().expires_on == due


def test_they_are_made_ahead_for_all_periods_once(settings):
    Tenant.objects.create(name="short", content_days=2)
    Tenant.objects.create(name="ever", content_days=0)
    Tenant.objects.create(name="longer", content_days=LONGEST + 1)
    made = sum(run_together(make_partitions, 2))
    needed = {
        today() + timedelta(days=ahead + days + 1)
        for days in (2, conf().content_days)
        for ahead in range(partitions.AHEAD + 1)
    }
    assert needed <= days_there()
    assert made <= len(needed)
    assert make_partitions() == 0
    session = add_session(None, 3, expires_on=today() + timedelta(days=3))
    assert partition_of(session) == f"checkpoints_{today() + timedelta(days=3):%Y%m%d}"


def test_what_has_no_partition_is_stored_all_the_same_and_stays_where_it_is():
    day = today() + timedelta(days=8)
    early = add_session(None, 3, expires_on=day)
    assert partition_of(early) == OTHERS
    Tenant.objects.create(name="own", content_days=7)
    make_partitions()  # must not wait for anybody's rows to be moved
    assert day not in days_there()
    assert day + timedelta(days=1) in days_there()
    late = add_session(None, 3, expires_on=day)
    assert partition_of(late) == OTHERS
    long_ago(late, early)
    assert purge_expired_content()["purged"] == 2
    assert not TokenCheckpoint.objects.exists()


def test_a_days_content_goes_with_its_partition():
    partition = due_partition()
    session = add_session(None, 3, expires_on=partition.day)
    kept = add_session(None, 3, expires_on=today() + timedelta(days=1))
    long_ago(session)
    assert drop_partitions() == {"dropped": 0, "deleted": 0}  # it has not been purged yet
    assert purge_expired_content()["purged"] == 1
    assert rows(f"SELECT count(*) FROM {partition.table}") == [(1,)]  # no row by itself
    assert drop_partitions() == {"dropped": 1, "deleted": 0}
    assert partition.day not in days_there()
    session.refresh_from_db()
    assert session.log_digest is not None
    assert set(TokenCheckpoint.objects.values_list("session", flat=True)) == {kept.pk}


@pytest.mark.parametrize("why", ["it lives", "its tenant keeps content for longer now"])
def test_a_partition_waits_for_whom_it_has_to_keep_and_the_others_go(why):
    partition = due_partition()
    gone = add_session(None, 3, expires_on=partition.day)
    long_ago(gone)
    if why == "it lives":
        waits = add_session(None, 3, expires_on=partition.day)
        StreamSession.objects.filter(pk=waits.pk).update(created_at=long_ago(gone))
    else:
        tenant = Tenant.objects.create(name="own", content_days=90)
        waits = add_session(None, 3, expires_on=partition.day, tenant=tenant)
        long_ago(waits)
    assert purge_expired_content()["purged"] == 1
    assert drop_partitions() == {"dropped": 0, "deleted": 1}
    assert set(TokenCheckpoint.objects.values_list("session", flat=True)) == {waits.pk}
    StreamSession.objects.filter(pk=waits.pk).update(ended_at=timezone.now())
    purge_session(waits.pk, by="user:alice")
    assert drop_partitions() == {"dropped": 1, "deleted": 0}


def test_a_shorter_period_is_for_what_exists_too():
    tenant = Tenant.objects.create(name="own")
    session = add_session(None, 3, tenant=tenant, expires_on=today() + timedelta(days=20))
    long_ago(session, days=10)
    assert purge_expired_content()["purged"] == 0
    Tenant.objects.update(content_days=7)
    assert purge_expired_content()["purged"] == 1
    assert not TokenCheckpoint.objects.exists()


def test_who_reads_is_in_the_way_for_as_long_as_he_reads():
    partition = due_partition()
    session = add_session(None, 3, expires_on=partition.day)
    long_ago(session)
    purge_expired_content()
    with rival() as reader:
        reader.execute(f"SELECT * FROM {partition.table} LIMIT 1")
        assert drop_partitions()["dropped"] == 0
        assert partition.day in days_there()
    assert drop_partitions()["dropped"] == 1


def test_a_reader_of_other_days_keeps_a_partition_but_not_its_rows():
    partition = due_partition()
    session = add_session(None, 3, expires_on=partition.day)
    kept = add_session(None, 3, expires_on=today() + timedelta(days=1))
    long_ago(session)
    purge_expired_content()
    with rival() as reader:
        reader.execute(
            "SELECT 1 FROM streaming_tokencheckpoint WHERE session_id = %s AND expires_on = %s",
            (kept.pk, kept.expires_on),
        )
        assert drop_partitions()["dropped"] == 0
        assert rows(f"SELECT count(*) FROM {partition.table}") == [(0,)]
    assert drop_partitions()["dropped"] == 1


def test_the_journal_goes_on_while_somebody_waits_for_a_partition():
    partition = due_partition()
    session = add_session(None, 3, expires_on=partition.day)
    live = add_session(None, 1, expires_on=today() + timedelta(days=1))
    long_ago(session)
    purge_expired_content()
    written: list[int] = []
    with rival() as reader, rival(autocommit=True) as journal:
        reader.execute("SELECT count(*) FROM streaming_tokencheckpoint")
        # Longer than anybody waits here: whoever had to stand in line to the end would fail.
        journal.execute("SET lock_timeout = '5s'")
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                seq = len(written) + 2
                journal.execute(APPEND, (live.pk, seq, seq, live.expires_on))
                written.append(seq)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert drop_partitions()["dropped"] == 0
        finally:
            over.set()
            writer.join()
    assert len(written) > partitions.TRIES
    assert TokenCheckpoint.objects.of(live).count() == len(written) + 1
    assert drop_partitions()["dropped"] == 1


def test_it_is_all_done_by_a_role_that_owns_nothing():
    partition = due_partition()
    gone = add_session(None, 3, expires_on=partition.day)
    live = add_session(None, 3, expires_on=partition.day)
    StreamSession.objects.filter(pk=live.pk).update(created_at=long_ago(gone))
    Tenant.objects.create(name="own", content_days=5)
    with as_application():
        assert make_partitions() == partitions.AHEAD + 1
        assert purge_expired_content()["purged"] == 1
        assert drop_partitions() == {"dropped": 0, "deleted": 1}
        StreamSession.objects.filter(pk=live.pk).update(ended_at=timezone.now())
        purge_session(live.pk, by="user:alice")
        assert drop_partitions() == {"dropped": 1, "deleted": 0}


@contextmanager
def as_application() -> Iterator[None]:
    """As the role that docs/audit.md gives to gateways and workers."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE retention_app")
        try:
            cursor.execute("GRANT USAGE ON SCHEMA public TO retention_app")
            for what in ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES"):
                cursor.execute(f"GRANT {what} IN SCHEMA public TO retention_app")
            cursor.execute("SET ROLE retention_app")
            yield
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY retention_app")
            cursor.execute("DROP ROLE retention_app")


def test_a_function_that_runs_as_the_owner_refuses_what_must_not_be():
    ahead = today() + timedelta(days=conf().content_days + 1)
    with connection.cursor() as cursor:
        with pytest.raises(ProgrammingError, match="no content leaves on"):
            cursor.execute("SELECT streaming_make_partition('1999-01-01')")
        cursor.execute("SELECT streaming_empty_partition(%s)", [ahead])
        assert cursor.fetchone() == (False,)
        cursor.execute("SELECT streaming_drop_partition(%s)", [ahead])
        assert cursor.fetchone() == (False,)
    assert ahead in days_there()


def test_two_runs_at_once_drop_a_partition_once():
    partition = due_partition()
    long_ago(add_session(None, 3, expires_on=partition.day))
    purge_expired_content()
    results = run_together(drop_partitions, 2)
    drop_partitions()  # each may have been in the other's way
    assert sum(result["dropped"] for result in results) <= 1
    assert partition.day not in days_there()


def test_who_reads_a_session_touches_its_partition_alone():
    day = today() + timedelta(days=conf().content_days + 1)
    session = add_session(None, 3, expires_on=day)
    logs, locked = asyncio.run(_read(session.pk))
    assert len(logs[session.pk].token_ids) == 3
    assert locked == [(Partition(day).table,)]
    plan = TokenCheckpoint.objects.of(session).explain()
    assert Partition(day).table in plan
    assert "Append" not in plan


async def _read(session_id: UUID) -> tuple[Any, Any]:
    async with await psycopg.AsyncConnection.connect(**parameters()) as reader:
        logs = await read_logs(reader, [session_id])
        return logs, await (await reader.execute(LOCKED)).fetchall()


LOCKED = """
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE l.pid = pg_backend_pid() AND i.inhparent = 'streaming_tokencheckpoint'::regclass
"""
APPEND = """
INSERT INTO streaming_tokencheckpoint (session_id, epoch, attempt, first_seq, last_seq, token_ids,
    text, text_ends, digest, ends_surely, created_at, expires_on)
VALUES (%s, 1, 1, %s, %s, '', '', '', '', true, now(), %s)
"""
