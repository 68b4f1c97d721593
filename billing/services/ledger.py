"""Booking lines. Whatever enters the ledger does so here, and its hash enters the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from django.db import transaction
from django.utils import timezone

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
    links: list[audit.Draft] | None = None,
) -> LedgerEntry:
    """Book a line. The caller holds the period (``locks.share_period``), and the charge of a credit.

    With ``links`` its link of the audit log is added to them, for the caller to append at the end of
    the transaction (``audit.append_many``); without, it is appended at once.
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
    link = _link(entry)
    if links is None:
        audit.append_many([link])
    else:
        links.append(link)
    return entry


@transaction.atomic
def post_many(entries: Sequence[LedgerEntry]) -> None:
    """Book lines that are not stored yet, as ``post`` does: some statements, however many they are."""
    LedgerEntry.objects.bulk_create(entries)
    audit.append_many([_link(entry) for entry in entries])


def _link(entry: LedgerEntry) -> audit.Draft:
    return audit.draft_of(
        f"ledger.{entry.kind}",
        entry,
        actor=entry.actor,
        tenant_id=entry.tenant_id,
        session_id=entry.session_id,
        data={"amount": entry.amount, "currency": entry.currency},
    )
