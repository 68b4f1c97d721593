"""Booking lines. Whatever enters the ledger does so here, and its hash enters the audit log."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.core.chain import fingerprint
from billing.models import BillingPeriod, LedgerEntry, Settlement
from billing.services import audit


@transaction.atomic
def post(
    *,
    kind: LedgerEntry.Kind,
    period: BillingPeriod,
    currency: str,
    amount: Decimal,
    idempotency_key: str,
    actor: str = audit.SYSTEM,
    settlement: Settlement | None = None,
    charge: LedgerEntry | None = None,
    session_id: UUID | None = None,
    model: str = "",
    cost_centre: str = "",
    reason: str = "",
    correction: bool = False,
) -> LedgerEntry:
    """Book a line. The caller holds the period (``locks.share_period``), and the charge of a credit.

    Raises ``django.db.IntegrityError`` when the key was used before.
    """
    entry = LedgerEntry.objects.create(
        kind=kind,
        tenant_id=period.tenant_id,
        period=period,
        settlement=settlement,
        charge=charge,
        session_id=session_id,
        model=model,
        cost_centre=cost_centre,
        currency=currency,
        amount=amount,
        correction=correction,
        reason=reason,
        idempotency_key=idempotency_key,
        actor=actor,
        created_at=timezone.now(),
    )
    audit.append(
        f"ledger.{kind}",
        actor=actor,
        subject=f"ledger:{entry.id}",
        tenant_id=entry.tenant_id,
        session_id=session_id,
        data={"sha256": fingerprint(hashed_fields(entry)), "amount": amount, "currency": currency},
    )
    return entry


def hashed_fields(entry: LedgerEntry) -> dict[str, Any]:
    """Everything of a line that its hash covers: all of its columns."""
    return {field.attname: getattr(entry, field.attname) for field in entry._meta.concrete_fields}
