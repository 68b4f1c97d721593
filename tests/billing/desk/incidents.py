"""Incidents with settled sessions, for tests of what is credited for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from billing.models import LedgerEntry
from billing.services.bulk_credits import Choice
from streaming.models import Incident, StreamSession, Tenant
from tests.billing.periods.books import charged
from tests.billing.rows import add_tenant

_numbers = itertools.count(1)


def incident_of(charges: Sequence[LedgerEntry], **columns: Any) -> Incident:
    """An incident that has hit their sessions."""
    incident = Incident.objects.create(
        kind="interruption", subject=f"gpu-{next(_numbers)}", **columns
    )
    strike(incident, charges)
    return incident


def strike(incident: Incident, charges: Sequence[LedgerEntry], **columns: Any) -> None:
    StreamSession.objects.filter(pk__in=[charge.session_id for charge in charges]).update(
        incident=incident, **{"outcome": "recovered", **columns}
    )


def charges_of(*amounts: str, tenant: Tenant | None = None, **story: Any) -> list[LedgerEntry]:
    """A settled session for each amount."""
    return [charged(amount, tenant or add_tenant(), **story) for amount in amounts]


def choice(incident: Incident, which: str = "all", percent: str = "100") -> Choice:
    return Choice(incident.pk, which, Decimal(percent))


def given() -> dict[Any, Decimal]:
    """What people have credited, by session."""
    entries = LedgerEntry.objects.filter(kind="credit", settlement=None)
    return {entry.session_id: -entry.amount for entry in entries}
