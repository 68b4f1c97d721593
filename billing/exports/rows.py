"""Ledger lines, one after the other, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from billing.conf import conf
from billing.exports.columns import COLUMNS, Row
from billing.models import BillingPeriod, LedgerEntry

BATCH = 2000

# One statement, so one snapshot: lines booked meanwhile are in the next export, whole.
QUERY = f"""
SELECT {", ".join(column.sql for column in COLUMNS)}
FROM billing_ledgerentry e
JOIN billing_billingperiod p ON p.id = e.period_id
JOIN streaming_tenant t ON t.id = e.tenant_id
LEFT JOIN billing_billingaccount a ON a.tenant_id = e.tenant_id
LEFT JOIN billing_settlement s ON s.id = e.settlement_id
LEFT JOIN streaming_streamsession w ON w.id = e.session_id
WHERE e.period_id = ANY(%(periods)s)
ORDER BY e.id
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The lines of some periods, in the order of their ids."""

    periods: Sequence[BillingPeriod]

    def count(self) -> int:
        """How many lines there are now: for progress, not for the books."""
        return LedgerEntry.objects.filter(period__in=[period.pk for period in self.periods]).count()

    def batches(self) -> Iterator[list[Row]]:
        """Up to ``BATCH`` rows at a time, from a cursor of the server."""
        arguments: dict[str, Any] = {
            "periods": [period.pk for period in self.periods],
            "issuer": conf().invoice_issuer,
        }
        with transaction.atomic(), connection.chunked_cursor() as cursor:
            cursor.execute(QUERY, arguments)
            while rows := cursor.fetchmany(BATCH):
                yield [Row._make(row) for row in rows]
