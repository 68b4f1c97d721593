"""Usage events on their way to others."""

from __future__ import annotations

from billing.models import Settlement, UsageRecord


def announce(settlement: Settlement, usage: UsageRecord) -> None:
    """Have the settlement told."""
