"""What tenants have used of their limits: the sum of their settlements, kept with each of them.

Tokens are those settled: the prompt once, and what was delivered. What a contract bills besides
(``interrupt_compensated``) counts as it is billed; replays, retries, hedges and waste never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Sum

from billing.locks import lock_quota
from billing.models import (
    BillingAccount,
    BillingPeriod,
    QuotaReservation,
    QuotaUse,
    Settlement,
    UsageRecord,
)
from billing.services import budgets
from billing.services.periods import account_of
from streaming.services.sql import changed, rows

NEVER_BEGAN = timedelta(minutes=2)
"""A session that is not durable by then never will be."""
NEVER_SETTLED = timedelta(days=1)
"""That long after its end a session keeps its reservation, should its settlement be late."""
SWEEP_ROWS = 1000

_COUNT = """
INSERT INTO billing_quotause AS u
    (account_id, period_name, tokens, reserved_tokens, spent, reserved_spend, currency)
VALUES (%(account)s, %(period)s, %(tokens)s, 0,
    CASE WHEN %(limited)s = %(currency)s THEN %(amount)s ELSE 0 END, 0, %(limited)s)
ON CONFLICT (account_id, period_name) DO UPDATE
SET tokens = u.tokens + excluded.tokens,
    spent = u.spent + CASE WHEN u.currency = %(currency)s THEN %(amount)s ELSE 0 END
RETURNING id
"""

# The reservation before the use, here and in the sweep: two that lock both can't wait for each other.
_RELEASE = """
WITH released AS (
    DELETE FROM billing_quotareservation WHERE session_id = %s RETURNING use_id, tokens, spend
)
UPDATE billing_quotause u
SET reserved_tokens = u.reserved_tokens - r.tokens, reserved_spend = u.reserved_spend - r.spend
FROM released r WHERE u.id = r.use_id
"""

_SWEEP = """
WITH stale AS MATERIALIZED (
    SELECT r.session_id FROM billing_quotareservation r
    LEFT JOIN streaming_streamsession s ON s.id = r.session_id
    WHERE r.created_at < now() - %s AND (s.id IS NULL OR s.ended_at < now() - %s)
    ORDER BY r.created_at LIMIT %s FOR UPDATE OF r SKIP LOCKED
), released AS (
    DELETE FROM billing_quotareservation r USING stale WHERE r.session_id = stale.session_id
    RETURNING r.use_id, r.tokens, r.spend
), sums AS (
    SELECT use_id, sum(tokens) AS tokens, sum(spend) AS spend, count(*) AS sessions
    FROM released GROUP BY use_id
), given_back AS (
    UPDATE billing_quotause u
    SET reserved_tokens = u.reserved_tokens - sums.tokens,
        reserved_spend = u.reserved_spend - sums.spend
    FROM sums WHERE u.id = sums.use_id
)
SELECT coalesce(sum(sessions), 0)::int FROM sums
"""


def settled(usage: UsageRecord, settlement: Settlement) -> None:
    """Count a settlement, in its transaction: release what its session had reserved, add what it
    came to (negative: give it back) to its period, and raise the budget alerts that are due."""
    release(usage.pk)
    account = account_of(settlement.tenant_id)
    ((use_id,),) = rows(
        _COUNT,
        {
            "account": account.pk,
            "period": settlement.period.name,
            "tokens": settlement.prompt_tokens + settlement.output_tokens,
            "amount": settlement.amount,
            "currency": settlement.currency,
            "limited": account.spend_currency,
        },
    )
    if account.token_limit is not None or account.spend_limit is not None:
        budgets.evaluate(account, lock_quota(use_id))


def release(session_id: UUID) -> bool:
    """Give back what a session has reserved; whether it had."""
    return changed(_RELEASE, session_id) > 0


def release_stale() -> dict[str, Any]:
    """Give back what sessions hold that never began, or have ended long ago; how many.

    ``more``: there may be others.
    """
    ((released,),) = rows(_SWEEP, NEVER_BEGAN, NEVER_SETTLED, SWEEP_ROWS)
    return {"released": released, "more": released == SWEEP_ROWS}


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of a tenant's use of a period that is not what its settlements come to."""

    tenant: str
    period_name: str
    figure: str
    stored: Decimal
    counted: Decimal

    def __str__(self) -> str:
        return f"{self.tenant} {self.period_name}: {self.figure} {self.stored:f}, counted {self.counted:f}"


def recount(*, tenant_id: int | None = None, period_name: str = "") -> list[Difference]:
    """How the uses differ from the settlements and reservations that they are the sum of."""
    found = []
    for account, period in _periods(tenant_id, period_name):
        with transaction.atomic():
            found += _differences(use_of(account, period))
    return found


def rebuild(*, tenant_id: int | None = None, period_name: str = "") -> list[Difference]:
    """Make the uses what their settlements and reservations come to; what was different."""
    found = []
    for account, period in _periods(tenant_id, period_name):
        with transaction.atomic():
            use = use_of(account, period)
            # In a new currency of the limit the sum in the old one means nothing.
            use.currency = account.spend_currency
            found += (differences := _differences(use))
            for difference in differences:
                setattr(use, difference.figure, difference.counted)
            use.save()
    return found


def use_of(account: BillingAccount, period_name: str) -> QuotaUse:
    """The use of a period, for us alone until the transaction ends; made when it is first needed."""
    QuotaUse.objects.bulk_create(
        [QuotaUse(account=account, period_name=period_name, currency=account.spend_currency)],
        ignore_conflicts=True,
    )
    return lock_quota(QuotaUse.objects.get(account=account, period_name=period_name).pk)


def _periods(tenant_id: int | None, period_name: str) -> list[tuple[BillingAccount, str]]:
    """The accounts and the names of their periods in which anything was settled or reserved."""
    wanted = {} if tenant_id is None else {"tenant_id": tenant_id}
    accounts = {account.pk: account for account in BillingAccount.objects.filter(**wanted)}
    pairs = {
        *QuotaUse.objects.values_list("account_id", "period_name"),
        *BillingPeriod.objects.filter(settlements__isnull=False).values_list("tenant_id", "name"),
    }
    return [
        (accounts[account_id], period)
        for account_id, period in sorted(pairs)
        if account_id in accounts and period_name in ("", period)
    ]


def _differences(use: QuotaUse) -> list[Difference]:
    """Whoever settles meanwhile waits for the row, so what is summed here is what it should hold."""
    lines = Settlement.objects.filter(tenant_id=use.account_id, period__name=use.period_name)
    reserved = QuotaReservation.objects.filter(use=use).aggregate(
        tokens=Sum("tokens"), spend=Sum("spend")
    )
    counted = {
        "tokens": lines.aggregate(sum=Sum(F("prompt_tokens") + F("output_tokens")))["sum"],
        "spent": lines.filter(currency=use.currency).aggregate(sum=Sum("amount"))["sum"],
        "reserved_tokens": reserved["tokens"],
        "reserved_spend": reserved["spend"],
    }
    return [
        Difference(
            use.account.tenant.name, use.period_name, figure, Decimal(stored), Decimal(total or 0)
        )
        for figure, total in counted.items()
        if (stored := getattr(use, figure)) != (total or 0)
    ]
