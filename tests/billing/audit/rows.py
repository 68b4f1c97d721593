"""A small ledger with everything that the audit log witnesses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from billing.models import (
    AuditHead,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    Settlement,
    UsageRecord,
)
from billing.services import audit, ledger, periods
from billing.services.guards import GUARDS
from streaming.core.ids import uuid7
from streaming.models import Tenant

TRICKY = Decimal("0.000000000000000001")
AMOUNTS = (Decimal("1.5"), TRICKY, Decimal("1E+3"), Decimal("-0.0"), Decimal("12.30"))


def settle(amount: Decimal = Decimal(1), *, tenant: str = "acme", **columns: Any) -> LedgerEntry:
    """A session that is settled once: its settlement, its ledger line, and both in the log."""
    owner = Tenant.objects.get_or_create(name=tenant)[0]
    now = timezone.now()
    with transaction.atomic():
        period, _ = periods.open_period(owner.pk, now)
        usage = UsageRecord.objects.create(
            session_id=uuid7(), tenant=owner, model="m", currency="EUR", amount=amount, began_at=now
        )
        settlement = add_settlement(usage, period, amount=amount, **columns)
        links: list[audit.Draft] = []
        entry = ledger.post(
            kind=LedgerEntry.Kind.CHARGE, period=period, currency="EUR", amount=amount,
            settlement=settlement, session_id=usage.session_id, model="m",
            idempotency_key=f"settlement:{usage.session_id}:1", links=links,
        )  # fmt: skip
        links.append(
            audit.draft_of(
                "settlement", settlement, actor=audit.SYSTEM, tenant_id=owner.pk,
                session_id=usage.session_id, data={"billed": 3},
            )
        )  # fmt: skip
        audit.append_many(links)
    return entry


def add_settlement(usage: UsageRecord, period: BillingPeriod, **columns: Any) -> Settlement:
    """Three tokens, delivered; not in the log yet."""
    now = timezone.now()
    values = {
        "usage": usage, "n": 1, "kind": "ended", "tenant_id": usage.tenant_id, "period": period,
        "state": "completed", "model": "m", "model_requested": "m", "from_tokens": 0, "to_tokens": 3,
        "output_tokens": 3, "prompt_tokens": 5, "cached_tokens": 1, "log_tokens": 3, "sent_tokens": 3,
        "delivered_tokens": 3, "compensated_tokens": 3, "evidence": "ack", "generated_tokens": 3,
        "discarded_tokens": 0, "regenerated_tokens": 0, "policy": "delivered",
        "input_per_million": Decimal("1.10"), "cached_input_per_million": Decimal(0),
        "output_per_million": Decimal("2E+1"), "coefficient": Decimal(1), "currency": "EUR",
        "amount": Decimal(1), "began_at": now, "occurred_at": now, "settled_at": now,
    }  # fmt: skip
    return Settlement.objects.create(**{**values, **columns})


def credit(charge: LedgerEntry, amount: Decimal = Decimal("0.5")) -> LedgerEntry:
    """A person takes part of a charge back."""
    with transaction.atomic():
        period, correction = periods.open_period(charge.tenant_id, timezone.now())
        return ledger.post(
            kind=LedgerEntry.Kind.CREDIT, period=period, currency="EUR", amount=-amount,
            charge=charge, reason="goodwill", actor="user:pat", correction=correction,
            idempotency_key=f"credit:{charge.pk}",
        )  # fmt: skip


def total(period: BillingPeriod) -> PeriodTotal:
    """What a period came to, as its close writes it down."""
    with transaction.atomic():
        row = PeriodTotal.objects.create(
            period=period, currency="EUR", lines=1, exact=Decimal("1.005"), rounded=Decimal(1),
            rule="half_even",
        )  # fmt: skip
        link = audit.draft_of("period.total", row, actor="user:pat", tenant_id=period.tenant_id)
        audit.append_many([link])
    return row


def tell(number: int = 3) -> None:
    """What people did."""
    for n in range(number):
        audit.append("node.drain", actor="user:pat", subject=f"node:gpu-{n}")


@contextmanager
def unguarded() -> Iterator[None]:
    """As somebody who owns the tables can have it."""
    with connection.cursor() as cursor:
        for table in GUARDS:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in GUARDS:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def tamper(statement: str, *arguments: Any) -> None:
    """Change the database behind everybody's back, foreign keys and triggers not asked."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, arguments)


def point_head_at(seq: int) -> None:
    """As a careful forger would after cutting off the end."""
    tamper(
        "UPDATE billing_audithead h SET seq = e.seq, hash = e.hash FROM billing_auditentry e"
        " WHERE e.seq = %s",
        seq,
    )
    assert AuditHead.objects.get().seq == seq
