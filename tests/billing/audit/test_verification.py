"""Tampering is found and named, whatever was changed, and however carefully."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, models, transaction
from django.utils import timezone

from billing.core.chain import GENESIS, Link
from billing.models import (
    AuditEntry,
    AuditHead,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    PriceList,
    PricePlan,
    Settlement,
)
from billing.services import audit, closing, guards, heads, prices, verification
from billing.services.periods import period_at
from billing.services.verification import Verdict, verify
from streaming.models import Tenant
from tests.billing.audit.rows import (
    AMOUNTS,
    credit,
    point_head_at,
    settle,
    tamper,
    tell,
    total,
    unguarded,
)

LOG = "billing_auditentry"
# Entries: 1-2 and 3-4 two settled sessions, 5 a credit, 6-8 what people did.
END = 8


@pytest.fixture
def log() -> list[LedgerEntry]:
    """Lines of the ledger that are in a log of ``END`` entries."""
    first, second = settle(Decimal("1.5")), settle(Decimal(2), tenant="other")
    lines = [first, second, credit(first)]
    tell()
    assert verify().ok
    assert AuditHead.objects.get().seq == END
    return lines


@pytest.fixture
def unchecked(log) -> Iterator[None]:
    """The rest of the test is undone, so CHECKs may go: they would catch some of it by themselves."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c' AND"
            " conrelid = ANY(ARRAY['billing_ledgerentry', 'billing_settlement']::regclass[])"
        )
        for table, name in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    return


def other(field: models.Field, value: Any) -> Any:
    """Another value that the column takes, as near to ``value`` as can be."""
    match value:
        case bool():
            return not value
        case int():
            return value + (1_000_000 if field.unique or field.is_relation else 1)
        case Decimal():
            return value + Decimal(1).scaleb(-field.decimal_places)
        case str():
            return value[:-1] if value else "x"
        case datetime():
            return value + timedelta(microseconds=1)
        case UUID():
            return UUID(int=value.int + 1)
        case bytes() | memoryview():
            return bytes(value)[:-1] + bytes([bytes(value)[-1] ^ 1])
    target = getattr(field, "target_field", field)
    return UUID(int=1) if isinstance(target, models.UUIDField) else 1


def after(statement: str, *arguments: Any) -> Verdict:
    """What is found once the statement has changed something; which is undone again."""
    with transaction.atomic():
        tamper(statement, *arguments)
        verdict = verify()
        transaction.set_rollback(True)
    assert not verdict.ok, statement
    return verdict


@pytest.mark.django_db(transaction=True)
def test_what_nobody_has_touched_is_whole():
    for amount in AMOUNTS:
        settle(amount)
    credit(settle())
    tell()
    verdict = verify()
    assert verdict.broken == []
    assert verdict.ok
    assert (verdict.checked, verdict.witnessed) == (2 * 6 + 1 + 3, 2 * 6 + 1)


@pytest.mark.django_db
def test_an_empty_log_is_whole():
    assert verify().ok
    audit.append("node.drain", actor="system", subject="node:a")
    assert verify().checked == 1


@pytest.mark.django_db
def test_a_log_longer_than_a_page_is_walked_to_its_end(monkeypatch, log):
    for size in (1, 3, END, END + 1):
        monkeypatch.setattr(verification, "PAGE", size)
        verdict = verify()
        assert verdict.ok
        assert verdict.checked == END
        assert (
            after("DELETE FROM billing_auditentry WHERE seq = 4").broken[0] == f"{LOG} 4 is missing"
        )


@pytest.mark.django_db
def test_a_change_of_any_column_is_found(log, unchecked):
    frozen = total(log[0].period)
    for model, key in (
        (AuditEntry, 3), (LedgerEntry, log[0].pk), (LedgerEntry, log[2].pk),
        (Settlement, log[0].settlement_id), (PeriodTotal, frozen.pk),
    ):  # fmt: skip
        table, pk = model._meta.db_table, model._meta.pk.column
        row = model.objects.get(pk=key)
        for field in model._meta.concrete_fields:
            value = getattr(row, field.attname)
            news = [other(field, value)]
            if field.null and value is not None:
                news.append(None)
            for new in news:
                verdict = after(
                    f'UPDATE {table} SET "{field.column}" = %s WHERE {pk} = %s', new, key
                )
                assert verdict.broken[0].startswith(f"{table} {key} "), (field.column, verdict)


@pytest.mark.django_db
@pytest.mark.parametrize("time", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01"])
def test_what_python_cannot_even_read_is_found(log, time):
    first, second, _ = log
    for table, pk, key, column, value in (
        (LOG, "seq", 2, "at", time),
        ("billing_ledgerentry", "id", first.pk, "created_at", time),
        ("billing_settlement", "id", second.settlement_id, "settled_at", time),
        ("billing_ledgerentry", "id", second.pk, "amount", "NaN"),
    ):
        verdict = after(f"UPDATE {table} SET {column} = %s WHERE {pk} = %s", value, key)
        assert len(verdict.broken) == 1
        assert verdict.broken[0].startswith(f"{table} {key} was changed: ")


@pytest.mark.django_db
def test_a_change_that_takes_its_hashes_along_is_found(log):
    """As by somebody who has read our source."""
    entry = AuditEntry.objects.get(seq=6)
    link = Link(
        entry.seq, entry.at, entry.action, "user:eve", entry.subject, entry.tenant_id,
        entry.session_id, entry.data,
    )  # fmt: skip
    verdict = after(
        "UPDATE billing_auditentry SET actor = 'user:eve', hash = %s WHERE seq = 6",
        link.hash(bytes(entry.previous)),
    )
    assert verdict.broken == [f"{LOG} 6 was replaced: entry 7 follows one with another hash"]


@pytest.mark.django_db
def test_the_whole_rest_written_anew_is_found_by_a_head_that_was_published(log):
    published = heads.publish()
    rewrite(log[1])
    unseen = verify()
    assert unseen.ok  # the price of a chain that lives beside its ledger
    assert verify([published]).broken == [f"{LOG} 8 is another than when its hash was published"]


def rewrite(line: LedgerEntry) -> None:
    """Make a line of the ledger cheaper, and every hash fit."""
    tamper("UPDATE billing_ledgerentry SET amount = amount / 2 WHERE id = %s", line.pk)
    line.refresh_from_db()
    previous = bytes(AuditEntry.objects.get(seq=2).hash)
    for entry in AuditEntry.objects.filter(seq__gte=3).order_by("seq"):
        data = entry.data
        if entry.subject == f"ledger:{line.pk}":
            data = audit.draft_of("ledger.charge", line, actor="", tenant_id=None).data
        link = Link(
            entry.seq, entry.at, entry.action, entry.actor, entry.subject, entry.tenant_id,
            entry.session_id, data,
        )  # fmt: skip
        hashed = link.hash(previous)
        tamper(
            "UPDATE billing_auditentry SET data = %s, previous = %s, hash = %s WHERE seq = %s",
            data, previous, hashed, entry.seq,
        )  # fmt: skip
        previous = hashed
    point_head_at(END)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("DELETE FROM billing_auditentry WHERE seq = 1", f"{LOG} 1 is missing"),
        ("DELETE FROM billing_auditentry WHERE seq = 6", f"{LOG} 6 is missing"),
        ("DELETE FROM billing_auditentry WHERE seq IN (2, 3, 4)", f"{LOG} 2 to 4 are missing"),
        ("DELETE FROM billing_auditentry WHERE seq > 6", f"{LOG} 7 to 8 are missing: the log was longer"),
        ("DELETE FROM billing_auditentry", f"{LOG} 1 to 8 are missing: the log was longer"),
        ("DELETE FROM billing_audithead", f"{LOG} 1 to 8 are too many: appended without the log's own lock"),
        ("UPDATE billing_audithead SET hash = sha256('')", f"{LOG} 8 is another than the head of the log says"),
        (
            "INSERT INTO billing_auditentry SELECT 0, at, action, actor, subject, tenant_id, session_id,"
            " data, sha256('a'), sha256('b') FROM billing_auditentry WHERE seq = 8",
            f"{LOG} 0 does not belong here: numbers begin with 1",
        ),
        (
            "INSERT INTO billing_auditentry SELECT 9, at, action, actor, subject, tenant_id, session_id,"
            " data, hash, sha256('b') FROM billing_auditentry WHERE seq = 8",
            f"{LOG} 9 was changed: its hash does not fit its columns",
        ),
        (
            "UPDATE billing_auditentry a SET at = b.at, actor = b.actor, subject = b.subject"
            " FROM billing_auditentry b WHERE a.seq + b.seq = 13 AND a.seq IN (6, 7)",
            f"{LOG} 6 was changed: its hash does not fit its columns",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_gone_added_or_swapped_are_found(log, statement, first):
    assert after(statement).broken[0] == first


@pytest.mark.django_db
def test_two_whole_rows_that_have_changed_places_are_found(log):
    with transaction.atomic():
        for was, now in ((6, -6), (7, 6), (-6, 7)):
            tamper("UPDATE billing_auditentry SET seq = %s WHERE seq = %s", now, was)
        verdict = verify()
        transaction.set_rollback(True)
    assert verdict.broken[0] == f"{LOG} 6 was changed: its hash does not fit its columns"
    assert verdict.broken[1] == f"{LOG} 7 was changed: its hash does not fit its columns"


@pytest.mark.django_db
def test_an_end_that_was_cut_off_with_its_head_is_found_by_what_was_published(log):
    early = heads.publish()
    tell(2)
    late = heads.publish()
    tamper("DELETE FROM billing_auditentry WHERE seq > 9")
    point_head_at(9)
    assert verify().ok
    assert verify([early]).ok
    verdict = verify([late, early, late])
    assert verdict.published == 3
    assert verdict.broken == [f"{LOG} 10 is missing: entry 10 was published, the log ends at 9"]
    tell(1)  # somebody has appended since
    assert verify([early, late]).broken == [f"{LOG} 10 is another than when its hash was published"]


@pytest.mark.django_db
def test_all_that_was_ever_logged_is_missed(log):
    late = heads.publish()
    tamper("DELETE FROM billing_auditentry")
    tamper("DELETE FROM billing_audithead")
    tamper("DELETE FROM billing_settlement")
    tamper("DELETE FROM billing_ledgerentry")
    assert verify().ok
    assert verify([late]).broken == [
        f"{LOG} 1 to 8 are missing: entry 8 was published, the log ends at 0"
    ]
    assert GENESIS.hex() == heads.publish().hash_hex


@pytest.mark.django_db
def test_lines_and_settlements_that_are_gone_or_added_are_found(log):
    for model, key, seq in ((LedgerEntry, log[1].pk, 3), (Settlement, log[1].settlement_id, 4)):
        table = model._meta.db_table
        gone = after(f"DELETE FROM {table} WHERE id = %s", key)
        assert gone.broken == [f"{table} {key} is missing: entry {seq} of the log tells of it"]
    columns = ", ".join(
        f'"{field.column}"' for field in LedgerEntry._meta.concrete_fields if not field.unique
    )
    added = after(
        f"INSERT INTO billing_ledgerentry (id, idempotency_key, settlement_id, {columns})"
        f" SELECT %s, 'k', NULL, {columns} FROM billing_ledgerentry WHERE id = %s",
        UUID(int=1), log[2].pk,
    )  # fmt: skip
    assert added.broken == [
        f"billing_ledgerentry {UUID(int=1)} is in no entry of the log: it was added beside it"
    ]
    columns = ", ".join(
        field.column for field in Settlement._meta.concrete_fields if field.name not in ("id", "n")
    )
    added = after(
        f"INSERT INTO billing_settlement (id, n, {columns}) SELECT 4711, 2, {columns}"
        " FROM billing_settlement WHERE id = %s",
        log[1].settlement_id,
    )
    assert added.broken == [
        "billing_settlement 4711 is in no entry of the log: it was added beside it"
    ]


@pytest.mark.django_db
def test_a_line_that_is_told_of_twice_or_not_at_all_is_found(log):
    line = log[0]
    again = audit.draft_of("ledger.charge", line, actor="system", tenant_id=line.tenant_id)
    with transaction.atomic():
        audit.append_many([again])
        verdict = verify()
        transaction.set_rollback(True)
    assert verdict.broken == [f"{LOG} 9 tells of ledger:{line.pk} again, as entry 1 did"]
    for subject, data in (
        ("ledger:nonsense", "{}"), (f"ledger:{line.pk}", "{}"), (f"ledger:{line.pk}", "["),
        (f"settlement:{line.pk}", '{"sha256":1}'), ("", '{"sha256":null}'),
    ):  # fmt: skip
        with transaction.atomic():
            audit.append_many(
                [audit.Draft(action="ledger.x", actor="", subject=subject, data=data)]
            )
            verdict = verify()
            transaction.set_rollback(True)
        assert verdict.broken[0] == f"{LOG} 9 holds no hash of a row of billing_ledgerentry"


@pytest.mark.django_db
def test_heads_of_others_are_told_apart(log, settings):
    published = heads.publish()
    forged = heads.Head(published.seq, "0" * 64, published.signature)
    assert verify([forged]).broken == ["published head 8 was not signed with our key"]
    settings.SECRET_KEY = "another"
    assert verify([published]).broken == ["published head 8 was not signed with our key"]


@pytest.mark.django_db
def test_more_than_can_be_told_is_counted(log):
    tell(verification.TOLD + 10)
    verdict = after("UPDATE billing_auditentry SET actor = 'user:eve' WHERE seq > 8")
    assert verdict.found == verification.TOLD + 10
    assert len(verdict.broken) == verification.TOLD
    assert verdict.broken[0].startswith(f"{LOG} 9 ")


@pytest.mark.django_db(transaction=True)
def test_what_is_settled_meanwhile_does_not_disturb(monkeypatch):
    """All of it is read as of one moment."""
    settle()
    credit(settle())
    pages = verification._pages

    def settle_elsewhere() -> None:
        settle()
        connection.close()

    def interrupted() -> Iterator[Any]:
        for page in pages():
            yield page
            somebody = threading.Thread(target=settle_elsewhere)
            somebody.start()
            somebody.join()

    monkeypatch.setattr(verification, "PAGE", 2)
    monkeypatch.setattr(verification, "_pages", interrupted)
    verdict = verify()
    assert verdict.broken == []
    assert verdict.checked == 5
    assert AuditHead.objects.get().seq > 5


@pytest.mark.django_db(transaction=True)
def test_a_guard_that_is_gone_is_told():
    with unguarded():
        assert "billing_ledgerentry append_only (its guard) is gone or disabled" in verify().broken
    assert verify().ok


def let_overlap(table: str) -> None:
    """The rest of the test is undone, so the constraint that would refuse some of it may go."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {guards.CONSTRAINTS[table]}")


@pytest.mark.django_db
def test_a_closed_month_that_is_changed_reopened_removed_or_added_is_found():
    tenant = Tenant.objects.create(name="acme")
    this = period_at(tenant.pk, timezone.now())
    month = period_at(tenant.pk, this.starts_at - timedelta(days=3))
    closing.close_period(month.pk, actor="user:pat")
    assert verify().witnessed == 1
    month.refresh_from_db()
    table = BillingPeriod._meta.db_table
    let_overlap(table)
    for field in BillingPeriod._meta.concrete_fields:
        if field.primary_key:
            continue
        value = getattr(month, field.attname)
        new = "{}" if isinstance(field, models.JSONField) else other(field, value)
        for changed in (new, None) if field.null else (new,):
            found = after(
                f"UPDATE {table} SET {field.column} = %s WHERE id = %s", changed, month.pk
            )
            assert found.broken[0] == (
                f"{table} {month.pk} was changed: it does not fit its hash in entry 1 of the log"
            )
    gone = after(f"DELETE FROM {table} WHERE id = %s", month.pk)
    assert gone.broken[0] == f"{table} {month.pk} is missing: entry 1 of the log tells of it"
    added = after(f"UPDATE {table} SET closed_at = now() WHERE id = %s", this.pk)
    assert added.broken[0] == f"{table} {this.pk} is in no entry of the log: it was added beside it"


def set_plan(**figures: Any) -> PricePlan:
    values = {
        "tenant_id": None, "model": "", "currency": "EUR", "input_per_million": Decimal("1.1"),
        "cached_input_per_million": Decimal(0), "output_per_million": Decimal("2E+1"),
    }  # fmt: skip
    return prices.set_plan(**{**values, **figures}, actor="user:pat")


@pytest.mark.django_db
def test_prices_that_are_changed_removed_or_added_are_found(monkeypatch):
    monkeypatch.setattr(verification, "PAGE", 1)
    soon = timezone.now() + timedelta(hours=1)
    first, ended = (
        set_plan(coefficient=Decimal(1)),
        set_plan(model="m", cost_per_million=Decimal(3)),
    )
    later = set_plan(effective_from=soon)
    withdrawn = set_plan(model="m", effective_from=soon)
    prices.withdraw_plan(withdrawn.pk, actor="user:pat")
    prices.end_plan(ended.pk, effective_to=soon, actor="user:pat")
    verdict = verify()
    assert verdict.broken == []
    assert verdict.witnessed == 3  # the withdrawn one is not there
    table = PricePlan._meta.db_table
    let_overlap(table)
    # The last entries: of the first its end, of the second its end, of the third its begin.
    seqs = {first.pk: 3, ended.pk: 9, later.pk: 4}
    for plan in PricePlan.objects.all():
        said = f"fit its hash in entry {seqs[plan.pk]} of the log"
        for field in PricePlan._meta.concrete_fields:
            if field.primary_key or field.name == "list":
                continue
            value = getattr(plan, field.attname)
            if value is None:
                news = [
                    Decimal(1)
                    if isinstance(field, models.DecimalField)
                    else soon + timedelta(days=1)
                ]
            else:
                news = [other(field, value), *([None] if field.null else [])]
            for new in news:
                found = after(f"UPDATE {table} SET {field.column} = %s WHERE id = %s", new, plan.pk)
                assert found.broken[0] == f"{table} {plan.pk} was changed: it does not {said}"
        gone = after(f"DELETE FROM {table} WHERE id = %s", plan.pk)
        assert gone.broken[0].startswith(f"{table} {plan.pk} is missing: ")
        broken = after(f"UPDATE {table} SET created_at = 'infinity' WHERE id = %s", plan.pk).broken
        assert broken[0] == f"{table} {plan.pk} was changed: it does not {said}"
    # Whose prices they are is in their list.
    lists = PriceList._meta.db_table
    for change in ("UPDATE {} SET model = 'x' WHERE id = %s", "DELETE FROM {} WHERE id = %s"):
        found = after(change.format(lists), ended.list_id)
        assert found.broken[0] == (
            f"{table} {ended.pk} was changed: it does not fit its hash in entry 9 of the log"
        )
    columns = ", ".join(f.column for f in PricePlan._meta.concrete_fields if f.name != "id")
    copy = f"INSERT INTO {table} (id, {columns}) SELECT %s, {columns} FROM {table} WHERE id = %s"
    added = after(copy, 4711, later.pk).broken
    again = after(copy, withdrawn.pk, later.pk).broken
    assert f"{table} 4711 is in no entry of the log: it was added beside it" in added
    assert f"{table} {withdrawn.pk} is there again: it was withdrawn in entry 8 of the log" in again
