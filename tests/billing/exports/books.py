"""Booked lines for tests of exports: as settlements and people leave them in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from billing.core import money
from billing.core.money import Prices
from billing.models import (
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    PricePlan,
    Settlement,
    UsageRecord,
)
from billing.services import ledger, periods
from streaming.core.ids import uuid7
from streaming.models import Tenant
from tests.billing.rows import add_plan, add_tenant

NOVEMBER = datetime(2026, 11, 12, 10, 30, 15, 250_000, tzinfo=UTC)
ODD = {"input": "0.12345678", "cached": "0.01234567", "output": "3.98765433"}
"""Prices with all decimals there are: what floats would get wrong."""


@transaction.atomic
def charge(
    tenant: Tenant | None = None,
    *,
    output: int = 7,
    prompt: int = 10,
    cached: int = 0,
    plan: PricePlan | None = None,
    at: datetime = NOVEMBER,
    **columns: Any,
) -> LedgerEntry:
    """A session that was settled once, and its line."""
    tenant = tenant or add_tenant()
    plan = plan or PricePlan.objects.first() or add_plan(**ODD)
    session_id = uuid7()
    usage = UsageRecord.objects.create(
        session_id=session_id, tenant=tenant, model="m", plan=plan, began_at=at
    )
    return _settle(
        usage, 1, tenant, plan, at, to_tokens=output, output_tokens=output, prompt_tokens=prompt,
        cached_tokens=cached, **columns,
    )  # fmt: skip


@transaction.atomic
def give_back(
    charged: LedgerEntry, *, at: datetime = NOVEMBER, correction: bool = False
) -> LedgerEntry:
    """All of a charge was not delivered after all."""
    first = charged.settlement
    assert first is not None
    assert first.plan is not None
    return _settle(
        first.usage, first.n + 1, first.tenant, first.plan, at, kind="denied", corrects=first,
        from_tokens=first.to_tokens, to_tokens=0, output_tokens=-first.to_tokens,
        prompt_tokens=-first.prompt_tokens, cached_tokens=-first.cached_tokens,
        delivered_tokens=0, charge=charged, correction=correction, model=first.model,
        cost_centre=first.cost_centre,
    )  # fmt: skip


def _settle(
    usage: UsageRecord,
    n: int,
    tenant: Tenant,
    plan: PricePlan,
    at: datetime,
    *,
    charge: LedgerEntry | None = None,
    correction: bool = False,
    **columns: Any,
) -> LedgerEntry:
    period = periods.period_at(tenant.pk, at)
    prices = Prices(
        plan.input_per_million,
        plan.cached_input_per_million,
        plan.output_per_million,
        plan.coefficient,
    )
    amount = money.amount(
        prices,
        prompt=columns["prompt_tokens"],
        cached=columns["cached_tokens"],
        output=columns["output_tokens"],
    )
    most = max(columns["to_tokens"], columns.get("from_tokens", 0))
    settlement = Settlement.objects.create(
        **{
            "usage": usage, "n": n, "kind": "ended", "tenant": tenant, "period": period,
            "state": "completed", "model": "m", "model_requested": "chat-default",
            "api_key_prefix": "ub-test-1", "from_tokens": 0, "log_tokens": most, "sent_tokens": most,
            "delivered_tokens": columns["to_tokens"], "compensated_tokens": most, "evidence": "ack",
            "generated_tokens": most + 3, "discarded_tokens": 2, "regenerated_tokens": 1,
            "policy": plan.policy, "plan": plan, "input_per_million": prices.input,
            "cached_input_per_million": prices.cached_input, "output_per_million": prices.output,
            "coefficient": prices.coefficient, "currency": plan.currency, "amount": amount,
            "began_at": at, "occurred_at": at, "settled_at": timezone.now(), **columns,
        }
    )  # fmt: skip
    return ledger.post(
        kind=LedgerEntry.Kind.CREDIT if charge else LedgerEntry.Kind.CHARGE,
        period=period,
        currency=plan.currency,
        amount=amount,
        idempotency_key=f"settlement:{usage.pk}:{n}",
        settlement=settlement,
        charge=charge,
        session_id=usage.pk,
        model=settlement.model,
        cost_centre=settlement.cost_centre,
        reason="not delivered" if charge else "",
        correction=correction,
    )


@transaction.atomic
def credit(charged: LedgerEntry, amount: str, reason: str = "goodwill") -> LedgerEntry:
    """A person gives something back."""
    return ledger.post(
        kind=LedgerEntry.Kind.CREDIT, period=charged.period, currency=charged.currency,
        amount=-Decimal(amount), idempotency_key=f"credit:{uuid7()}", actor="user:pat", charge=charged,
        session_id=charged.session_id, model=charged.model, cost_centre=charged.cost_centre,
        reason=reason,
    )  # fmt: skip


@transaction.atomic
def adjust(
    tenant: Tenant, amount: str, reason: str, *, at: datetime = NOVEMBER, currency: str = "EUR"
) -> LedgerEntry:
    """A person books something else."""
    return ledger.post(
        kind=LedgerEntry.Kind.ADJUSTMENT, period=periods.period_at(tenant.pk, at), currency=currency,
        amount=Decimal(amount), idempotency_key=f"adjustment:{uuid7()}", actor="user:pat", reason=reason,
    )  # fmt: skip


def a_month() -> dict[str, Tenant]:
    """Two tenants' November: charges, tokens given back, credits, adjustments, two currencies."""
    acme, beta = add_tenant("acme", display_name="Acme & Söhne"), add_tenant("beta")
    odd, dollars = (
        add_plan(**ODD),
        add_plan(beta, currency="USD", coefficient=Decimal("1.2345"), **ODD),
    )
    for number in range(5):
        charge(acme, output=number * 1001, prompt=17, cached=5, plan=odd, cost_centre="team-a")
        charge(beta, output=number + 1, prompt=3, plan=dollars)
    denied = charge(acme, output=99, plan=odd)
    give_back(denied)
    credit(
        charge(acme, output=1_000_000, plan=odd), "0.000000000000000001", '=goodwill, "über"\nall'
    )
    adjust(acme, "-12.5", "agreed with 山田; see mail")
    adjust(beta, "3.000000000000000007", "set-up", currency="USD")
    return {"acme": acme, "beta": beta}


def close(period: BillingPeriod, **columns: Any) -> None:
    """As the close of a period leaves it."""
    sums: dict[str, list[Decimal]] = {}
    for entry in LedgerEntry.objects.filter(period=period):
        sums.setdefault(entry.currency, []).append(entry.amount)
    for currency, amounts in sums.items():
        exact = money.total(amounts)
        PeriodTotal.objects.create(
            period=period, currency=currency, lines=len(amounts), exact=exact,
            rounded=money.rounded(exact, currency), rule=money.ROUNDING_RULE,
        )  # fmt: skip
    BillingPeriod.objects.filter(pk=period.pk).update(closed_at=timezone.now(), **columns)


def slip_in() -> None:
    """A line more in a closed month, by somebody who can get past the guards."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        charge()
        cursor.execute("SET LOCAL session_replication_role = origin")


def ledger_sums(**filters: Any) -> dict[str, Decimal]:
    """By currency, by the database."""
    sums: dict[str, Decimal] = {}
    for entry in LedgerEntry.objects.filter(**filters):
        sums[entry.currency] = money.EXACT.add(sums.get(entry.currency, Decimal(0)), entry.amount)
    return sums
