"""The period that a line belongs to."""

from __future__ import annotations

import zoneinfo
from datetime import datetime

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from billing.core.months import Month, month_at, month_named, month_of, shifted
from billing.errors import BillingError
from billing.locks import lock_account, share_period
from billing.models import BillingAccount, BillingPeriod
from billing.services import audit
from streaming.core.state import SessionState
from streaming.models import StreamSession, Tenant


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
    with transaction.atomic():
        account = _locked_account(tenant_id)
        zone = account.time_zone
        months = _months_around(tenant_id, month_of(at, zone))
        return _kept(account, month_at(at, zone, months))


def period_named(tenant_id: int, name: str) -> BillingPeriod:
    """The tenant's period of that name (2026-11); made when it is first needed.

    Raises ``ValueError`` for a name that is no month.
    """
    shifted(name, 0)
    known = BillingPeriod.objects.filter(tenant_id=tenant_id, name=name).first()
    if known is not None:
        return known
    with transaction.atomic():
        account = _locked_account(tenant_id)
        months = _months_around(tenant_id, name)
        return _kept(account, month_named(name, account.time_zone, months))


def periods_named(name: str, tenant_id: int | None = None) -> list[BillingPeriod]:
    """That month of every tenant (or of one) that anything is known to have happened in; by tenant.

    Nothing is written: of a tenant whose sessions ended or were suspended in it, and billing has
    not heard of any yet, the period is one that is not stored. Raises ``ValueError`` for a name
    that is no month.
    """
    shifted(name, 0)
    tenants = Tenant.objects.filter(pk=tenant_id) if tenant_id else Tenant.objects.all()
    stored = BillingPeriod.objects.filter(name=name, tenant__in=tenants).select_related("tenant")
    found = {period.tenant_id: period for period in stored}
    for tenant in tenants.exclude(pk__in=found).select_related("billing"):
        account = getattr(tenant, "billing", None) or BillingAccount(tenant=tenant)
        period = _of(account, month_named(name, account.time_zone, _months_around(tenant.pk, name)))
        if _anything_ended(period):
            found[tenant.pk] = period
    return [found[key] for key in sorted(found)]


def _anything_ended(period: BillingPeriod) -> bool:
    within = {"gte": period.starts_at, "lt": period.ends_at}
    ended = Q(**{f"ended_at__{than}": at for than, at in within.items()})
    suspended = Q(**{f"suspended_at__{than}": at for than, at in within.items()})
    return StreamSession.objects.filter(
        ended | suspended & Q(state=SessionState.SUSPENDED.value), tenant_id=period.tenant_id
    ).exists()


def open_period(tenant_id: int, occurred_at: datetime) -> tuple[BillingPeriod, bool]:
    """Where a line of ``occurred_at`` goes, held open until the transaction ends (``locks``).

    That is the period of that moment, or the current one when it is closed already; then the second
    value is True: the line corrects the past.
    """
    return open_instead_of(period_at(tenant_id, occurred_at))


def open_instead_of(period: BillingPeriod) -> tuple[BillingPeriod, bool]:
    """Where a line that belongs to ``period`` goes: as ``open_period``.

    For what takes from a line there is already: a credit belongs where its charge is.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("a period is held by a transaction")
    period = share_period(period.pk)
    if period.closed_at is None:
        return period, False
    current = share_period(period_at(period.tenant_id, timezone.now()).pk)
    while current.closed_at is not None:
        # Only a period that is over is closed; but whose clock says so may be ahead of ours.
        current = share_period(period_at(current.tenant_id, current.ends_at).pk)
    return current, True


@transaction.atomic
def change_time_zone(tenant_id: int, time_zone: str, *, actor: str) -> BillingAccount:
    """Count the tenant's months in another zone: from the next one on; the current one stays.

    The next month begins where the current one ends, so it is some hours longer or shorter. Raises
    ``BillingError`` for a zone that is unknown.
    """
    if time_zone not in zoneinfo.available_timezones():
        raise BillingError(f"{time_zone!r} is no time zone; use a name like Europe/Berlin.")
    period_at(tenant_id, timezone.now())  # the month that runs ends by the zone it began in
    account = _locked_account(tenant_id)
    before = account.time_zone
    if before == time_zone:
        return account
    account.time_zone = time_zone
    account.save(update_fields=["time_zone"])
    audit.append(
        "account.time_zone",
        actor=actor,
        subject=f"tenant:{tenant_id}",
        tenant_id=tenant_id,
        data={"old": before, "new": time_zone},
    )
    return account


def _locked_account(tenant_id: int) -> BillingAccount:
    account_of(tenant_id)
    return lock_account(tenant_id)


def _months_around(tenant_id: int, name: str) -> dict[str, Month]:
    """Those periods of the tenant, as months, that a month next to ``name`` may border on."""
    around = [shifted(name, by) for by in range(-3, 4)]
    return {
        period.name: Month(period.name, period.starts_at, period.ends_at)
        for period in BillingPeriod.objects.filter(tenant_id=tenant_id, name__in=around)
    }


def _kept(account: BillingAccount, month: Month) -> BillingPeriod:
    """The period of ``month``; the account is locked, so nobody else makes one meanwhile."""
    known = BillingPeriod.objects.filter(tenant_id=account.tenant_id, name=month.name).first()
    if known is not None:
        return known
    period = _of(account, month)
    period.save(force_insert=True)
    return period


def _of(account: BillingAccount, month: Month) -> BillingPeriod:
    """Not stored."""
    return BillingPeriod(
        tenant=account.tenant,
        name=month.name,
        starts_at=month.starts_at,
        ends_at=month.ends_at,
        time_zone=account.time_zone,
    )
