"""The period that a line belongs to."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from billing.core.months import bounds, month_of
from billing.locks import share_period
from billing.models import BillingAccount, BillingPeriod


def account_of(tenant_id: int) -> BillingAccount:
    """The tenant's account, made when it is first needed."""
    return BillingAccount.objects.get_or_create(tenant_id=tenant_id)[0]


def period_at(tenant_id: int, at: datetime) -> BillingPeriod:
    """The tenant's period that ``at`` falls into, open or closed; made when it is first needed."""
    known = BillingPeriod.objects.filter(
        tenant_id=tenant_id, starts_at__lte=at, ends_at__gt=at
    ).first()
    if known is not None:
        return known
    zone = account_of(tenant_id).time_zone
    name = month_of(at, zone)
    starts_at, ends_at = bounds(name, zone)
    BillingPeriod.objects.bulk_create(
        [
            BillingPeriod(
                tenant_id=tenant_id,
                name=name,
                starts_at=starts_at,
                ends_at=ends_at,
                time_zone=zone,
            )
        ],
        ignore_conflicts=True,
    )
    return BillingPeriod.objects.get(tenant_id=tenant_id, name=name)


def open_period(tenant_id: int, occurred_at: datetime) -> tuple[BillingPeriod, bool]:
    """Where a line of ``occurred_at`` goes, held open until the transaction ends (``locks``).

    That is the period of that moment, or the current one when it is closed already; then the second
    value is True: the line corrects the past.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("a period is held by a transaction")
    period = share_period(period_at(tenant_id, occurred_at).pk)
    if period.closed_at is None:
        return period, False
    return share_period(period_at(tenant_id, timezone.now()).pk), True
