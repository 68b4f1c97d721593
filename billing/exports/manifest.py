"""What an export holds, counted while it is written; the manifest says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from billing.core.chain import moment
from billing.core.money import EXACT, ROUNDING_RULE, plain
from billing.exports import totals
from billing.exports.columns import SCHEMA_VERSION, Row
from billing.models import BillingPeriod, Export


@dataclass(slots=True)
class Totals:
    """Sums over rows, exact; amounts by currency."""

    lines: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    amounts: dict[str, Decimal] = field(default_factory=dict)
    lines_of: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.lines += 1
        self.input_tokens += row.billed_input_tokens or 0
        self.cached_input_tokens += row.billed_cached_input_tokens or 0
        self.output_tokens += row.billed_output_tokens or 0
        before = self.amounts.get(row.currency, Decimal(0))
        self.amounts[row.currency] = EXACT.add(before, row.amount)
        self.lines_of[row.currency] = self.lines_of.get(row.currency, 0) + 1

    def described(self) -> dict[str, Any]:
        return {
            "rows": self.lines,
            "tokens": {
                "input": self.input_tokens,
                "cached_input": self.cached_input_tokens,
                "output": self.output_tokens,
            },
            "amounts": {code: plain(sum_) for code, sum_ in sorted(self.amounts.items())},
        }


class Count:
    """The totals of an export, and of each account in it."""

    def __init__(self) -> None:
        self.all = Totals()
        self.accounts: dict[int, Totals] = {}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.all.add(row)
            self.accounts.setdefault(row.account_id, Totals()).add(row)

    def verify(self, periods: Sequence[BillingPeriod]) -> None:
        """Raises ``ExportFailed`` when a closed period does not come to its totals."""
        for period in periods:
            one = self.accounts.get(period.tenant_id, Totals())
            totals.verify(
                period, {code: (one.lines_of[code], exact) for code, exact in one.amounts.items()}
            )


def describe(
    export: Export,
    periods: Sequence[BillingPeriod],
    count: Count,
    files: Sequence[dict[str, Any]],
    *,
    audit_head: dict[str, Any],
    at: datetime,
) -> dict[str, Any]:
    """The manifest, as JSON holds it."""
    return {
        "export": str(export.pk),
        "schema_version": SCHEMA_VERSION,
        "format": export.format,
        "filter": {
            "period": export.period_name,
            "account": export.tenant.name if export.tenant else None,
        },
        "closed": all(period.closed_at for period in periods),
        **count.all.described(),
        "files": list(files),
        "accounts": [_account(period, count) for period in periods],
        "audit_head": audit_head,
        "generated_at": moment(at),
        "generated_by": export.requested_by,
    }


def _account(period: BillingPeriod, count: Count) -> dict[str, Any]:
    rounded = {total.currency: plain(total.rounded) for total in period.totals.all()}
    return {
        "id": period.tenant_id,
        "name": period.tenant.name,
        "from": moment(period.starts_at),
        "to": moment(period.ends_at),
        "time_zone": period.time_zone,
        "closed_at": moment(period.closed_at) if period.closed_at else None,
        **count.accounts.get(period.tenant_id, Totals()).described(),
        **({"rounded": rounded, "rounding": ROUNDING_RULE} if period.closed_at else {}),
    }
