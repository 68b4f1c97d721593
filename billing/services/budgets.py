"""Telling tenants that they near a limit: once for each threshold, limit and period."""

from __future__ import annotations

from decimal import Decimal

from django.utils import timezone

from billing.core.money import plain
from billing.core.quota import reached
from billing.models import BillingAccount, BudgetAlert, QuotaUse
from billing.services import audit, usage_events
from streaming.services import webhooks


def evaluate(account: BillingAccount, use: QuotaUse) -> list[BudgetAlert]:
    """Raise the alerts that are due, hard limit or not. The caller holds ``use`` (``locks``)."""
    due = _due(account, use)
    if not due:
        return []
    told = set(
        BudgetAlert.objects.filter(account=account, period_name=use.period_name).values_list(
            "measure", "threshold"
        )
    )
    return [
        _raise(account, use, measure, threshold)
        for measure, threshold in due
        if (measure, threshold) not in told
    ]


def rearm(account: BillingAccount, use: QuotaUse) -> None:
    """After a change of the limits: thresholds that are not reached any more are told again."""
    due = _due(account, use)
    for alert in BudgetAlert.objects.filter(account=account, period_name=use.period_name):
        if (alert.measure, alert.threshold) not in due:
            alert.delete()


def _due(account: BillingAccount, use: QuotaUse) -> list[tuple[str, int]]:
    spend_limit = account.spend_limit if use.currency == account.spend_currency else None
    return [
        *((BudgetAlert.Measure.TOKENS.value, t) for t in reached(use.tokens, account.token_limit)),
        *((BudgetAlert.Measure.SPEND.value, t) for t in reached(use.spent, spend_limit)),
    ]


def _raise(account: BillingAccount, use: QuotaUse, measure: str, threshold: int) -> BudgetAlert:
    alert = BudgetAlert.objects.create(
        account=account,
        period_name=use.period_name,
        measure=measure,
        threshold=threshold,
        at=timezone.now(),
    )
    is_spend = measure == BudgetAlert.Measure.SPEND
    limit = Decimal((account.spend_limit if is_spend else account.token_limit) or 0)
    used = Decimal(use.spent if is_spend else use.tokens)
    usage_events.announce_budget(alert, limit=limit, used=used, currency=use.currency)
    webhooks.enqueue(
        webhooks.Kind.LIMIT_NEAR,
        account.tenant_id,
        {
            "period": use.period_name,
            "measure": measure,
            "threshold_percent": threshold,
            "limit": plain(limit),
            "used": plain(used),
            "currency": use.currency if is_spend else None,
            "hard": account.limits_are_hard,
        },
    )
    audit.append(
        "budget.reached",
        actor=audit.SYSTEM,
        subject=f"tenant:{account.tenant.name}",
        tenant_id=account.tenant_id,
        data={
            "period": use.period_name,
            "measure": measure,
            "threshold": threshold,
            "limit": limit,
            "used": used,
            "currency": use.currency if is_spend else "",
            "hard": account.limits_are_hard,
        },
    )
    return alert
