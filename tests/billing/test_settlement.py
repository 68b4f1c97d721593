"""Settling sessions on the real database: what is charged, when, and that it is charged once."""

from __future__ import annotations

from decimal import Decimal

import pytest

from billing.models import AuditEntry, Settlement
from billing.services.settlement import settle_due
from streaming.models import Incident
from tests.billing.rows import add_plan, ended_session

pytestmark = pytest.mark.django_db(transaction=True)


def test_x():
    add_plan(cost="1")
    s = ended_session(10)
    r = settle_due()
    print(r)
    assert Settlement.objects.get().amount == Decimal("0.00005")
    print(list(AuditEntry.objects.values()))
    assert Incident.objects.count() == 0
