"""Changing what finance knows of a tenant."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from billing.errors import BillingError
from billing.locks import lock_account
from billing.models import BillingAccount, PricePlan
from billing.services import audit, budgets, quota
from billing.services.periods import account_of, change_time_zone, period_at
from streaming.models import Tenant

FIELDS = (
    "legal_name", "time_zone", "token_limit", "spend_limit", "spend_currency", "limits_are_hard",
)  # fmt: skip
LIMITS = frozenset({"token_limit", "spend_limit", "spend_currency"})


class AccountRefused(BillingError):
    """An account cannot be as it was asked for."""


def find_account(tenant_name: str) -> BillingAccount:
    """The account of a tenant, made when it is first needed. Raises ``AccountRefused``."""
    tenant = Tenant.objects.filter(name=tenant_name).first()
    if tenant is None:
        raise AccountRefused(f"There is no tenant {tenant_name!r}.")
    return account_of(tenant.pk)


@transaction.atomic
def change_account(tenant_id: int, *, actor: str, **values: Any) -> BillingAccount:
    """Set some of ``FIELDS``, audited with what they were. Limits are in force within two seconds; a
    time zone is that of periods which have not begun. Raises ``BillingError``."""
    if unknown := values.keys() - set(FIELDS):
        raise AccountRefused(f"An account has no {', '.join(sorted(unknown))}.")
    if "time_zone" in values:
        change_time_zone(tenant_id, values.pop("time_zone"), actor=actor)
    account_of(tenant_id)
    account = lock_account(tenant_id)
    was = {name: getattr(account, name) for name in FIELDS}
    for name, value in values.items():
        setattr(account, name, value)
    _check(account)
    now = {name: getattr(account, name) for name in FIELDS}
    changed = {name for name in FIELDS if was[name] != now[name]}
    if not changed:
        return account
    account.save()
    if changed & LIMITS:
        _recount(account, was["spend_currency"])
    audit.append(
        "account.change",
        actor=actor,
        subject=f"tenant:{account.tenant.name}",
        tenant_id=account.tenant_id,
        data={
            "was": {name: was[name] for name in changed},
            "now": {name: now[name] for name in changed},
        },
    )
    return account


def priced_otherwise(account: BillingAccount) -> list[str]:
    """The other currencies in which this tenant may be charged: a limit does not count those."""
    if account.spend_limit is None:
        return []
    plans = PricePlan.objects.filter(effective_to__isnull=True).exclude(
        currency=account.spend_currency
    )
    own = plans.filter(list__tenant_id=account.tenant_id)
    everybodys = plans.filter(list__tenant__isnull=True)
    return sorted(set((own | everybodys).values_list("currency", flat=True)))


def _check(account: BillingAccount) -> None:
    try:
        account.full_clean(exclude=["tenant"])
    except ValidationError as exc:
        raise AccountRefused(" ".join(exc.messages)) from exc
    for limit in (account.token_limit, account.spend_limit):
        if limit is not None and limit < 0:
            raise AccountRefused("A limit cannot be negative.")
    if account.spend_limit is not None and not account.spend_currency:
        raise AccountRefused("A limit of money needs its currency, such as EUR.")


def _recount(account: BillingAccount, former_currency: str) -> None:
    """Of the current period: what counts against the new limits, and which of them are reached."""
    period = period_at(account.tenant_id, timezone.now()).name
    if account.spend_currency != former_currency:
        quota.rebuild(tenant_id=account.tenant_id, period_name=period)
    use = quota.use_of(account, period)
    budgets.rearm(account, use)
    budgets.evaluate(account, use)
