"""What a closed period came to, against what there is now."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from billing.core.money import plain
from billing.errors import ExportFailed
from billing.models import BillingPeriod

Found = Mapping[str, tuple[int, Decimal]]
"""Lines and their exact amount, by currency."""


def verify(period: BillingPeriod, found: Found) -> None:
    """Compare with the totals of the close. Raises ``ExportFailed``: then do not trust what there is.

    An open period has none to compare with.
    """
    if period.closed_at is None:
        return
    written = {total.currency: (total.lines, total.exact) for total in period.totals.all()}
    if _without_nothing(written) != _without_nothing(found):
        raise ExportFailed(
            f"{period} was closed with {_in_words(written)}; the ledger has {_in_words(found)}."
        )


def _without_nothing(found: Found) -> Found:
    return {code: (lines, exact) for code, (lines, exact) in found.items() if lines or exact}


def _in_words(found: Found) -> str:
    told = (
        f"{plain(exact)} {code} in {lines} lines" for code, (lines, exact) in sorted(found.items())
    )
    return ", ".join(told) or "nothing"
