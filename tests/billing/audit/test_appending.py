"""Appending: what is hashed is what is stored, and the chain never forks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import StrEnum
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from billing.core.chain import GENESIS, Link
from billing.locks import lock_audit_head
from billing.models import AuditEntry, AuditHead, LedgerEntry, Settlement
from billing.services import audit
from billing.services.verification import verify
from streaming.core.ids import uuid7
from streaming.services.sql import rows
from tests.billing.audit.rows import AMOUNTS, credit, settle, tell
from tests.stack import ROOT

PROCESSES = 6
TIMES = 24


class Way(StrEnum):
    FAR = "far"


def stored(entry: AuditEntry) -> AuditEntry:
    return AuditEntry.objects.get(pk=entry.pk)


@pytest.mark.django_db
def test_an_entry_follows_the_one_before():
    one = audit.append("node.drain", actor="user:pat", subject="node:a")
    two = audit.append("node.resume", actor="user:pat", subject="node:a", tenant_id=7)
    assert (one.seq, one.previous) == (1, GENESIS)
    assert (two.seq, two.previous) == (2, one.hash)
    head = AuditHead.objects.get()
    assert (head.seq, bytes(head.hash)) == (2, two.hash)
    with pytest.raises(TypeError, match="cannot be deleted"):
        one.delete()


@pytest.mark.django_db
def test_what_is_hashed_is_what_the_database_gives_back():
    data = {
        "text": "naïve 🦊 \x00\ud83d \"quoted\" \\u0000", "amount": Decimal("1.50"), "way": Way.FAR,
        "id": uuid4(), "none": None, "list": [1, True, ("x",)], "big": 10**30,
    }  # fmt: skip
    for session_id in (None, uuid7()):
        entry = audit.append(
            "test.data", actor="user:\x00né\udc80", subject="node:é" * 100, tenant_id=2**40,
            session_id=session_id, data=data,
        )  # fmt: skip
        row = stored(entry)
        assert row.actor == "user:\ufffdné\ufffd"
        assert len(row.subject) == 200
        link = Link(
            row.seq, row.at, row.action, row.actor, row.subject, row.tenant_id, row.session_id,
            row.data,
        )  # fmt: skip
        assert link.hash(bytes(row.previous)) == bytes(row.hash)
    assert verify().ok


@pytest.mark.django_db
def test_a_long_name_fits():
    entry = audit.append("node.drain", actor=f"user:{'a' * 150}", subject="node:a")
    assert stored(entry).actor == f"user:{'a' * 145}"


@pytest.mark.django_db
def test_many_links_cost_two_statements(django_assert_num_queries):
    tell(1)
    drafts = [audit.draft("node.drain", actor="user:pat", subject=f"node:{n}") for n in range(20)]
    with transaction.atomic(), django_assert_num_queries(2):
        entries = audit.append_many(drafts)
    assert [entry.seq for entry in entries] == list(range(2, 22))
    assert audit.append_many([]) == []
    assert verify().checked == 21


@pytest.mark.django_db
@pytest.mark.parametrize("amount", AMOUNTS)
def test_the_hash_of_a_row_is_the_same_when_it_is_read_back(amount):
    entry = settle(amount)
    assert audit.row_hash(entry) == audit.row_hash(LedgerEntry.objects.get())
    assert audit.row_hash(entry.settlement) == audit.row_hash(Settlement.objects.get())
    assert verify().ok


@pytest.mark.django_db
def test_a_line_that_its_column_would_round_is_not_hashed():
    entry = LedgerEntry(amount=Decimal("0.0000000000000000001"))
    with pytest.raises(ValueError, match="amount keeps 18 decimals"):
        audit.row_hash(entry)
    with pytest.raises(TypeError, match="float"):
        audit.row_hash(LedgerEntry(amount=0.5))


@pytest.mark.django_db
def test_a_column_that_is_added_later_leaves_old_hashes_as_they_are():
    entry = settle()
    fields = audit.hashed_fields(entry)
    assert "charge_id" not in fields  # null, as every column that was not there yet
    assert set(fields) | {"charge_id"} == {
        field.attname for field in LedgerEntry._meta.concrete_fields
    }


@pytest.mark.django_db
def test_a_settlement_with_its_line_locks_the_chain_once_and_last():
    settle()
    with CaptureQueriesContext(connection) as queries:
        settle()
    statements = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert ["audithead" in sql for sql in statements].count(True) == 2
    assert all("audithead" in sql for sql in statements[-2:])


@pytest.mark.django_db(transaction=True)
def test_what_is_not_done_is_not_in_the_log():
    tell(1)
    with transaction.atomic():
        tell(2)
        transaction.set_rollback(True)
    charge = settle()
    credit(charge)
    with pytest.raises(IntegrityError):
        credit(charge)  # its key was used
    assert verify().ok
    assert AuditHead.objects.get().seq == AuditEntry.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_six_processes_that_append_at_once_never_fork_the_chain():
    with appenders(PROCESSES, TIMES) as processes:
        with transaction.atomic():
            # Nobody has appended yet: all of them want to make the head, too.
            lock_audit_head()
            go(processes)
            while waiting() < PROCESSES:
                assert all(process.poll() is None for process in processes)
                time.sleep(0.02)
        assert [process.wait(120) for process in processes] == [0] * PROCESSES
    verdict = verify()
    assert verdict.broken == []
    each = sum((1 if n % 2 else 3) for n in range(TIMES) if n % 3 != 2)
    assert verdict.checked == PROCESSES * each


@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_killed_while_it_appends_leaves_the_chain_whole():
    with appenders(1, 1_000_000) as (process,):
        go([process])
        while AuditEntry.objects.count() < 20:
            assert process.poll() is None
            time.sleep(0.02)
    tell(1)  # waits until the server has let go of what the dead held
    assert verify().ok


@contextmanager
def appenders(number: int, times: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ready to append ``times`` times; killed at the end."""
    of = connection.settings_dict
    url = f"postgresql://{of['USER']}:{of['PASSWORD']}@{of['HOST']}:{of['PORT']}/{of['NAME']}"
    env = {
        **os.environ, "DATABASE_URL": url, "DATABASE_POOL_SIZE": "0",
        "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.billing.audit.appender"]
    processes = [
        subprocess.Popen(
            [*command, f"p{n}", str(times)], env=env, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for n in range(number)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def go(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()


def waiting() -> int:
    """How many wait for a lock."""
    return rows("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")[0][0]
