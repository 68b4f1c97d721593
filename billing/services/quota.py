"""What tenants have used of their limits."""

from __future__ import annotations

from billing.models import Settlement, UsageRecord


def settled(usage: UsageRecord, settlement: Settlement) -> None:
    """Count a settlement."""
