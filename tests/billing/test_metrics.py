"""What ``/metrics`` tells of billing is what the database says."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from billing.metrics import FIGURES
from billing.models import EventDelivery, UsageSink
from billing.services import audit
from billing.services.periods import period_at
from tests.billing.rows import Story, add_plan, add_tenant, ended_session, settle_all

pytestmark = pytest.mark.django_db(transaction=True)


async def figures() -> dict[str, float]:
    database = settings.DATABASES["default"]
    keys = {
        "NAME": "dbname",
        "USER": "user",
        "PASSWORD": "password",
        "HOST": "host",
        "PORT": "port",
    }
    arguments = {name: database[key] for key, name in keys.items() if database.get(key)}
    async with await psycopg.AsyncConnection.connect(**arguments) as connection:
        families = await FIGURES.read(connection)
    assert [family.name for family in families] == [family.name for family in FIGURES.empty()]
    return {sample.name: sample.value for family in families for sample in family.samples}


def stored() -> None:
    hour = timedelta(hours=1)
    now = timezone.now()
    ended_session(ago=hour)
    told = ended_session()
    told.announce("session_delivered")  # twice, and one session
    tenant = add_tenant()
    period_at(tenant.pk, now)
    period_at(tenant.pk, now - timedelta(days=40))
    audit.append("node.drain", actor="user:alice", subject="node:gpu-1")
    sink = UsageSink.objects.create(name="collector", url="https://collector.example")
    for number, state in enumerate(("pending", "pending", "delivered")):
        EventDelivery.objects.create(
            sink=sink, event_id=str(number), type="t", body="{}", state=state,
            created_at=now - number * hour,
        )  # fmt: skip


async def test_an_empty_database_has_nothing_that_waits():
    assert set((await figures()).values()) == {0.0}


async def test_what_waits_is_counted_and_its_age_told():
    await sync_to_async(stored)()
    seen = await figures()
    assert seen["unbroken_unsettled_sessions"] == 2
    assert 3600 <= seen["unbroken_unsettled_age_seconds"] < 3700
    assert seen["unbroken_unaudited_age_seconds"] == 0
    assert seen["unbroken_audit_entries"] == 1
    assert seen["unbroken_periods_to_close"] == 1
    assert seen["unbroken_usage_events_waiting"] == 2
    assert 3600 <= seen["unbroken_usage_events_age_seconds"] < 3700
    assert seen["unbroken_credit_requests_open"] == 0


def delivered_in_many_ways() -> Story:
    """All of it charged as it should be; the answer is one that a policy charges otherwise."""
    ended_session(10)
    ended_session(10, delivered=4, state="abandoned", cause="client_gone", ago=timedelta(minutes=5))
    suspended = Story()
    suspended.attempt()
    suspended.tokens(8)
    suspended.deliver(3)
    suspended.suspend()
    globex = add_tenant("globex")
    add_plan(globex, policy="interrupt_compensated")
    lost = Story(globex, at=timezone.now() - timedelta(minutes=5))
    lost.attempt()
    lost.tokens(20)
    lost.deliver(5)
    lost.send(7)
    lost.end("failed", "engine_crash")
    settle_all()
    return lost


async def test_billing_is_as_accurate_as_its_charges():
    lost = await sync_to_async(delivered_in_many_ways)()
    seen = await figures()
    assert seen["unbroken_unsettled_sessions"] == 0
    assert seen["unbroken_billing_differing_sessions"] == 0
    assert seen["unbroken_billing_accuracy_ratio"] == 1
    # Evidence that nobody has announced: 12 have to be charged now, and 8 of them are.
    await sync_to_async(lost.send)(11)
    seen = await figures()
    assert seen["unbroken_billing_differing_sessions"] == 1
    assert seen["unbroken_billing_accuracy_ratio"] == pytest.approx(1 - 4 / (10 + 4 + 3 + 12))
    # It is about to be settled: nothing to be said of it yet.
    await sync_to_async(lost.announce)("session_delivered")
    seen = await figures()
    assert seen["unbroken_billing_differing_sessions"] == 0
    assert seen["unbroken_billing_accuracy_ratio"] == 1
