"""A tenant's month for people: what was used at which price, what was credited, what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, F, Q, Sum

from billing.conf import conf
from billing.core.chain import fingerprint
from billing.core.money import EXACT, plain, rounded
from billing.exports import totals
from billing.models import BillingAccount, BillingPeriod, Export, LedgerEntry
from billing.services import heads

LISTED = 500
"""Credits and adjustments that are listed one by one; more than that are summed up by kind."""

_PRICES = (
    "policy", "coefficient", "input_per_million", "cached_input_per_million", "output_per_million",
)  # fmt: skip
_GROUP = ("currency", "model", "cost_centre", "kind", "correction", *_PRICES)


def statement(period: BillingPeriod) -> dict[str, Any]:
    """What templates/billing/statement.html shows, as text where it is money.

    ``currencies``: a list of currency, ``usage`` (a row a model, cost centre and price), ``bookings``
    (credits and adjustments that people booked), ``exact`` and ``rounded`` totals. Provisional while
    the period is open. Raises ``ExportFailed`` when a closed period does not come to its totals.
    """
    zone = ZoneInfo(period.time_zone)
    usage, bookings = _usage(period), _bookings(period, zone)
    currencies = [
        _currency(
            code,
            [row for row in usage if row["currency"] == code],
            [row for row in bookings if row["currency"] == code],
        )
        for code in sorted({row["currency"] for row in [*usage, *bookings]})
    ]
    if period.closed_at is not None:
        _take_totals(period, currencies)
    figures = {
        "period": period.name,
        "account": period.tenant.name,
        "account_name": _account_name(period),
        "issuer": period.issuer or conf().invoice_issuer,
        "starts_at": _local(period.starts_at, zone),
        "ends_at": _local(period.ends_at, zone),
        "time_zone": period.time_zone,
        "closed_at": _local(period.closed_at, zone) if period.closed_at else "",
        "currencies": currencies,
    }
    return {
        **figures,
        "checksum": fingerprint(figures),
        "audit_head": heads.publish(),
        "exports": _exports(period, zone),
    }


def _usage(period: BillingPeriod) -> list[dict[str, Any]]:
    """Lines that settlements booked, one row for what has the same model, cost centre and price."""
    settled = LedgerEntry.objects.filter(period=period, settlement__isnull=False)
    prices = {name: F(f"settlement__{name}") for name in _PRICES}
    return list(
        settled.annotate(**prices)
        .values(*_GROUP)
        .annotate(
            lines=Count("pk"),
            sessions=Count("session_id", distinct=True),
            input=Sum("settlement__prompt_tokens"),
            cached=Sum("settlement__cached_tokens"),
            output=Sum("settlement__output_tokens"),
            total=Sum("amount"),
        )
        .order_by(*_GROUP)
    )


def _bookings(period: BillingPeriod, zone: ZoneInfo) -> list[dict[str, Any]]:
    """Credits and adjustments that people booked, in the order in which they did."""
    booked = LedgerEntry.objects.filter(period=period, settlement__isnull=True)
    listed = list(booked.order_by("pk")[:LISTED])
    rows = [
        {
            "currency": entry.currency,
            "kind": entry.kind,
            "correction": entry.correction,
            "at": _local(entry.created_at, zone),
            "reason": entry.reason,
            "model": entry.model,
            "cost_centre": entry.cost_centre,
            "line": str(entry.pk),
            "corrects": str(entry.charge_id or ""),
            "lines": 1,
            "total": entry.amount,
        }
        for entry in listed
    ]
    if len(listed) < LISTED:
        return rows
    others = booked.filter(pk__gt=listed[-1].pk).values("currency", "kind")
    return rows + [
        {**sums, "reason": f"and {sums['lines']} more, which the export lists"}
        for sums in others.annotate(lines=Count("pk"), total=Sum("amount")).order_by(
            "currency", "kind"
        )
    ]


def _currency(
    code: str, usage: Sequence[dict[str, Any]], bookings: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    exact = _sum([*usage, *bookings])
    return {
        "currency": code,
        "usage": [_as_text(row) for row in usage],
        "bookings": [_as_text(row) for row in bookings],
        "input": sum(row["input"] for row in usage),
        "cached": sum(row["cached"] for row in usage),
        "output": sum(row["output"] for row in usage),
        "usage_total": plain(_sum(usage)),
        "bookings_total": plain(_sum(bookings)),
        "lines": sum(row["lines"] for row in [*usage, *bookings]),
        "exact": plain(exact),
        "rounded": f"{rounded(exact, code):f}",
    }


def _take_totals(period: BillingPeriod, currencies: Sequence[dict[str, Any]]) -> None:
    """What a closed period came to is what was written down then."""
    totals.verify(
        period, {one["currency"]: (one["lines"], Decimal(one["exact"])) for one in currencies}
    )
    of = {total.currency: total.rounded for total in period.totals.all()}
    for one in currencies:
        one["rounded"] = f"{rounded(of[one['currency']], one['currency']):f}"


def _sum(rows: Iterable[dict[str, Any]]) -> Decimal:
    result = Decimal(0)
    for row in rows:
        result = EXACT.add(result, row["total"])
    return result


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: plain(value) if isinstance(value, Decimal) else value for name, value in row.items()
    }


def _account_name(period: BillingPeriod) -> str:
    account = BillingAccount.objects.filter(tenant=period.tenant_id).first()
    legal_name = account.legal_name if account else ""
    return period.account_name or legal_name or period.tenant.display_name or period.tenant.name


def _exports(period: BillingPeriod, zone: ZoneInfo) -> list[dict[str, Any]]:
    """The last exports that hold this period's lines."""
    made = Export.objects.filter(
        Q(tenant=None) | Q(tenant=period.tenant_id),
        period_name=period.name,
        finished_at__isnull=False,
    )
    return [
        {"at": _local(export.finished_at, zone), "files": export.manifest["files"]}
        for export in made.order_by("-finished_at")[:5]
        if export.finished_at is not None
    ]


def _local(at: datetime, zone: ZoneInfo) -> str:
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")
