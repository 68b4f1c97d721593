"""An incident that has hit thousands: its page and its credits take the memory of a small one."""

from __future__ import annotations

import time
from decimal import Decimal
from itertools import pairwise

import psutil
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing.models import LedgerEntry
from billing.services import bulk_credits
from streaming.models import Attempt, StreamSession
from streaming.services import reviews
from tests.billing.desk.incidents import choice, incident_of
from tests.billing.periods.books import settle
from tests.billing.periods.test_million import repeat
from tests.billing.rows import add_plan, ended_session
from tests.desk.staff import logged_in, member
from tests.desk.test_incidents import SUPPORT

MEMORY = 60 * 1024 * 1024
MONEY = ["view_ledgerentry", "view_usagerecord", "view_creditrequest"]


@pytest.mark.django_db
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.soak)])
def test_an_incident_of_many_sessions(count):
    add_plan(output="4", cost="1")
    charge = settle(ended_session(20))
    incident = incident_of([charge])
    StreamSession.objects.update(
        review="needed", noticed=True, gap_ms=400, interrupted_at=incident.opened_at,
        interrupted_node="gpu-a", interrupted_seq=3,
    )  # fmt: skip
    Attempt.objects.update(discarded_tokens=2)
    repeat(count - 1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    client = logged_in(member("pat", [*SUPPORT, *MONEY]))
    page = reverse("admin:streaming_incident_change", args=[incident.pk])
    client.get(page)  # what is imported and cached once
    process = psutil.Process()
    before, times = process.memory_info().rss, [time.monotonic()]

    with CaptureQueriesContext(connection) as queries:
        assert f"<dd>{count}</dd>" in client.get(page).text
    times.append(time.monotonic())
    sessions = StreamSession.objects.filter(incident=incident)
    done = reviews.review_all(sessions, incident, note="one cause", ticket="T-1", by="user:pat")
    times.append(time.monotonic())
    bulk = bulk_credits.begin(choice(incident, percent="50"), reason="the outage", actor="user:pat")
    times.append(time.monotonic())
    booked = bulk_credits.carry_on(600)["lines"]
    times.append(time.monotonic())

    grown = process.memory_info().rss - before
    took = [f"{after - first:.2f} s" for first, after in pairwise(times)]
    print(
        f"{count} sessions: page {took[0]} in {len(queries)} queries, review {took[1]}, "
        f"begin {took[2]}, book {took[3]}; {grown / 1e6:.0f} MB more"
    )
    assert done == booked == bulk.lines.count() == count
    credited = LedgerEntry.objects.filter(kind="credit").values_list("amount", flat=True)
    assert list(credited) == [-charge.amount * Decimal("0.5")] * count
    assert grown < MEMORY
