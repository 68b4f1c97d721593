"""What must not change is refused by the database itself, also to the owner of its tables."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import ProgrammingError, connection, connections, transaction
from django.utils import timezone
from psycopg import sql

from billing.models import (
    AuditEntry,
    AuditHead,
    BillingPeriod,
    CreditRequest,
    LedgerEntry,
    PriceList,
    PricePlan,
)
from billing.services import audit, guards
from billing.services.prices import end_plan
from billing.services.verification import verify
from tests.billing.audit.rows import credit, settle, tell, total, unguarded
from tests.stack import ROOT

APPEND_ONLY = ("auditentry", "ledgerentry", "settlement", "periodtotal")


def add_all(tenant: str = "acme") -> LedgerEntry:
    """A row in every guarded table."""
    line = settle(tenant=tenant)
    credit(line)
    tell(1)
    total(line.period)
    add_plan()
    return line


def add_plan(**columns: Any) -> PricePlan:
    prices, _ = PriceList.objects.get_or_create(tenant=None, model="")
    plan = PricePlan.objects.create(
        list=prices, currency="EUR", input_per_million=1, cached_input_per_million=1,
        output_per_million=1, created_by="user:pat", **columns,
    )  # fmt: skip
    link = audit.draft_of("price.set", plan, actor="user:pat", tenant_id=None)
    audit.append_many([link])
    return plan


def run(statement: str, *arguments: Any) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SET CONSTRAINTS ALL IMMEDIATE"
        )  # what waits would be in the way of TRUNCATE
        cursor.execute(statement, arguments)
        return cursor.rowcount


def refused(statement: str, *arguments: Any, words: str = "is refused") -> None:
    with pytest.raises(ProgrammingError, match=words) as raised:
        run(statement, *arguments)
    assert isinstance(raised.value.__cause__, psycopg.errors.InsufficientPrivilege)


@pytest.mark.django_db
def test_every_guard_stands_after_the_migrations():
    # They are not in the models: a migration that is written anew would lose them without a word.
    assert guards.missing() == []
    with unguarded():
        assert len(guards.missing()) == sum(map(len, guards.GUARDS.values()))
    run("DROP TRIGGER append_only_truncate ON billing_ledgerentry")
    assert guards.missing() == [("billing_ledgerentry", "append_only_truncate")]


@pytest.mark.django_db
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_what_only_grows_is_neither_changed_nor_emptied(table):
    add_all()
    refused(f"UPDATE billing_{table} SET tenant_id = 1" if table != "periodtotal" else
            "UPDATE billing_periodtotal SET rounded = 2")  # fmt: skip
    refused(f"DELETE FROM billing_{table}")
    refused(f"TRUNCATE billing_{table} CASCADE")


@pytest.mark.django_db
def test_the_head_of_the_log_goes_forward_only():
    tell(3)
    for statement in (
        "UPDATE billing_audithead SET seq = 2", "UPDATE billing_audithead SET hash = ''",
        "DELETE FROM billing_audithead", "TRUNCATE billing_audithead",
    ):  # fmt: skip
        refused(statement)
    tell(1)
    assert AuditHead.objects.get().seq == 4


@pytest.mark.django_db
def test_of_a_price_plan_only_the_end_is_set_until_it_has_come():
    plan = add_plan()
    refused("UPDATE billing_priceplan SET output_per_million = 2")
    refused("UPDATE billing_priceplan SET note = 'x', effective_to = now() + interval '1 day'")
    assert run("UPDATE billing_priceplan SET effective_to = now() + interval '1 day'") == 1
    assert run("UPDATE billing_priceplan SET effective_to = clock_timestamp()") == 1
    refused("UPDATE billing_priceplan SET effective_to = now() + interval '2 days'")
    refused("UPDATE billing_priceplan SET effective_to = NULL")
    plan.refresh_from_db()
    plan.save()  # as it is
    refused("DELETE FROM billing_priceplan")
    refused("TRUNCATE billing_priceplan CASCADE")


@pytest.mark.django_db
def test_a_price_plan_that_has_not_begun_may_be_taken_back():
    add_plan(effective_from=timezone.now() + timedelta(days=1))
    assert run("DELETE FROM billing_priceplan") == 1


@pytest.mark.django_db
def test_a_closed_period_stays_as_it_is():
    period = settle().period
    run("UPDATE billing_billingperiod SET checklist = '{}'")
    BillingPeriod.objects.filter(pk=period.pk).update(closed_at=timezone.now())
    refused("UPDATE billing_billingperiod SET closed_at = NULL")
    refused("UPDATE billing_billingperiod SET checklist = '{}'")
    refused("DELETE FROM billing_billingperiod")
    refused("TRUNCATE billing_billingperiod CASCADE")


@dataclass(frozen=True)
class Scratch:
    """A database of its own, whose owner is no superuser, and what the docs call unbroken_app."""

    database: str
    owner: str
    app: str
    password: str


@pytest.fixture(scope="module")
def scratch(django_db_blocker: Any) -> Iterator[Scratch]:
    name = f"guards_{secrets.token_hex(4)}"
    made = Scratch(name, f"{name}_owner", f"{name}_app", secrets.token_hex(16))
    with server() as cursor:
        cursor.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(made.owner), sql.Literal(made.password)
            )
        )
        cursor.execute(f"CREATE DATABASE {name} OWNER {made.owner}")
    try:
        with django_db_blocker.unblock(), connected(made, made.owner) as cursor:
            call_command("migrate", verbosity=0)
            for statement in documented(made):
                if statement.startswith("CREATE ROLE"):
                    with server() as superuser:
                        superuser.execute(statement)
                else:
                    cursor.execute(statement)
        yield made
    finally:
        with server() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"DROP ROLE IF EXISTS {made.app}")
            cursor.execute(f"DROP ROLE {made.owner}")


@contextmanager
def server() -> Iterator[psycopg.Cursor[Any]]:
    """As who may make roles and databases."""
    of = settings.DATABASES["default"]
    with (
        psycopg.connect(
            host=of["HOST"], port=of["PORT"], user=of["USER"], password=of["PASSWORD"],
            dbname="postgres", autocommit=True,
        ) as session,
        session.cursor() as cursor,
    ):  # fmt: skip
        yield cursor


def documented(made: Scratch) -> list[str]:
    """What docs/audit.md tells to run."""
    block = re.search(r"```sql\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)[1]
    block = block.replace("unbroken_app", made.app).replace("choose one", made.password)
    return [statement.strip() for statement in block.split(";") if statement.strip()]


@contextmanager
def connected(made: Scratch, role: str) -> Iterator[Any]:
    """Django works in the scratch database as that role."""
    usual = connections["default"]
    changed = {"NAME": made.database, "USER": role, "PASSWORD": made.password}
    connections["default"] = type(usual)({**usual.settings_dict, **changed}, "default")
    ContentType.objects.clear_cache()
    try:
        with connections["default"].cursor() as cursor:
            yield cursor
    finally:
        connections["default"].close()
        connections["default"] = usual
        ContentType.objects.clear_cache()


@pytest.mark.parametrize("who", ["owner", "app"])
def test_a_role_that_is_no_superuser_can_do_its_work_and_no_more(scratch, django_db_blocker, who):
    with django_db_blocker.unblock(), connected(scratch, getattr(scratch, who)) as cursor:
        cursor.execute("SELECT current_setting('is_superuser')")
        assert cursor.fetchone() == ("off",)
        line = add_all(who)
        # All that refers to guarded rows, by every foreign key there is.
        correction = settle(Decimal(-1), corrects=settle().settlement)
        CreditRequest.objects.create(
            tenant=line.tenant, charge=line, entry=correction, currency="EUR", amount=1,
            idempotency_key=who, reason="r", requested_by="user:pat", requested_at=timezone.now(),
        )  # fmt: skip
        for plan in PricePlan.objects.filter(effective_to=None):
            end_plan(plan.pk, actor="user:pat")
        verdict = verify()
        assert verdict.broken == []
        assert verdict.checked == AuditEntry.objects.count() == AuditHead.objects.get().seq

        for table in APPEND_ONLY:
            key = AuditEntry._meta.pk.column if table == "auditentry" else "id"
            refused(f"UPDATE billing_{table} SET {key} = {key}", words="refused|permission denied")
            refused(f"DELETE FROM billing_{table}", words="permission denied")
            refused(f"TRUNCATE billing_{table} CASCADE", words="permission denied|must be owner")
        refused("DELETE FROM billing_audithead", words="permission denied")
        refused("UPDATE billing_ledgerentry SET amount = 0", words="permission denied")
        refused("UPDATE billing_settlement SET amount = 0", words="permission denied")
        refused("UPDATE billing_priceplan SET currency = 'USD'", words="permission denied")
        refused("UPDATE billing_audithead SET seq = 1", words="the log only grows")
        disable = "ALTER TABLE billing_ledgerentry DISABLE TRIGGER USER"
        if who == "app":
            refused(disable, words="must be owner")
            return
        # The owner can take its triggers away; then privileges still stand.
        both = f"{disable}; UPDATE billing_ledgerentry SET amount = 0"
        refused(both, words="permission denied")
        refused("SET session_replication_role = replica", words="permission denied")
