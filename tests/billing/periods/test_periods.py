"""Periods in the database: made when needed, once, one after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.core.differences import Kind
from billing.errors import BillingError
from billing.models import AuditEntry, BillingAccount, BillingPeriod
from billing.services import periods
from billing.services.periods import change_time_zone, open_period, period_at, period_named
from billing.services.reconciliation import reconcile
from streaming.models import OutboxMessage, StreamSession
from tests.billing.rows import add_tenant, ended_session
from tests.tasks.rows import run_together

DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("zone", "moment", "name"),
    [
        ("UTC", "2026-11-30T23:59", "2026-11"),
        ("Pacific/Kiritimati", "2026-11-30T09:59", "2026-11"),
        ("Pacific/Kiritimati", "2026-11-30T10:00", "2026-12"),
        ("Pacific/Niue", "2026-12-01T10:59", "2026-11"),
        ("Pacific/Niue", "2026-12-01T11:00", "2026-12"),
    ],
)
def test_a_tenants_months_are_those_of_its_zone(zone, moment, name):
    tenant = add_tenant()
    BillingAccount.objects.create(tenant=tenant, time_zone=zone)
    period = period_at(tenant.pk, at(moment))
    assert (period.name, period.time_zone) == (name, zone)
    assert period_at(tenant.pk, at(moment)) == period == period_named(tenant.pk, name)


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Niue", "Asia/Kolkata"])
def test_a_new_zone_counts_from_the_next_month_on(zone):
    tenant = add_tenant()
    now = timezone.now()
    change_time_zone(tenant.pk, zone, actor="user:pat")
    current = period_at(tenant.pk, now)
    assert current.time_zone == "UTC"
    following = period_at(tenant.pk, current.ends_at)
    assert (following.time_zone, following.starts_at) == (zone, current.ends_at)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.data) == ("account.time_zone", f'{{"new":"{zone}","old":"UTC"}}')
    change_time_zone(tenant.pk, zone, actor="user:pat")
    assert AuditEntry.objects.count() == 1


@pytest.mark.django_db
def test_every_instant_of_a_year_of_changing_zones_is_in_one_period():
    tenant = add_tenant()
    account = periods.account_of(tenant.pk)
    zones = ["UTC", "Pacific/Kiritimati", "America/Havana", "Pacific/Niue"]
    for number in range(700):
        # To and fro, so that months are made in every order.
        moment = at("2026-01-01T00:00") + timedelta(hours=(number * 4001) % (365 * 24))
        if number % 9 == 0:
            account.time_zone = zones[number // 9 % len(zones)]
            account.save()
        period = period_at(tenant.pk, moment)
        assert period.starts_at <= moment < period.ends_at
    found = list(BillingPeriod.objects.order_by("starts_at"))
    assert [period.name for period in found] == sorted(period.name for period in found)
    assert len(found) in (12, 13, 14)
    for one, other in pairwise(found):
        assert one.ends_at == other.starts_at


@pytest.mark.django_db
def test_a_zone_that_there_is_not():
    tenant = add_tenant()
    with pytest.raises(BillingError, match="no time zone"):
        change_time_zone(tenant.pk, "Europe/Bonn", actor="user:pat")


@pytest.mark.django_db
def test_a_month_is_every_tenants_with_something_in_it_and_looking_writes_nothing():
    booked, ended, suspended = add_tenant("booked"), add_tenant("ended"), add_tenant("suspended")
    add_tenant("idle")
    BillingAccount.objects.create(tenant=ended, time_zone="Pacific/Kiritimati")
    stored = period_named(booked.pk, "2026-11")
    ended_session(tenant=ended, at=at("2026-10-31T12:00"))  # November there
    ended_session(tenant=booked, at=at("2026-10-31T12:00"))
    session = ended_session(tenant=suspended, at=at("2026-11-20T00:00")).session
    StreamSession.objects.filter(pk=session.pk).update(
        state="suspended", ended_at=None, suspended_at=at("2026-11-20T00:00")
    )
    OutboxMessage.objects.update(handled_at=timezone.now())  # and it was not settled
    found = periods.periods_named("2026-11")
    assert [period.tenant for period in found] == [booked, ended, suspended]
    assert [period.pk for period in found] == [stored.pk, None, None]
    assert found[1].starts_at == at("2026-10-31T10:00")
    assert reconcile(found[1]).found == {Kind.UNSETTLED: 1}
    assert periods.periods_named("2026-11", ended.pk)[0].tenant == ended
    assert periods.periods_named("2026-12") == []
    assert (BillingPeriod.objects.count(), BillingAccount.objects.count()) == (1, 2)
    with pytest.raises(ValueError, match="no month"):
        periods.periods_named("November")


@pytest.mark.django_db
def test_what_is_late_goes_into_the_current_month():
    tenant = add_tenant()
    now = timezone.now()
    last_month = period_at(tenant.pk, period_at(tenant.pk, now).starts_at - DAY)
    assert open_period(tenant.pk, now) == (period_at(tenant.pk, now), False)
    assert open_period(tenant.pk, last_month.starts_at) == (last_month, False)
    BillingPeriod.objects.filter(pk=last_month.pk).update(closed_at=now)
    assert open_period(tenant.pk, last_month.starts_at) == (period_at(tenant.pk, now), True)


@pytest.mark.django_db
def test_what_comes_while_our_clock_is_behind_goes_into_the_month_after_the_closed_one():
    tenant = add_tenant()
    current = period_at(tenant.pk, timezone.now())
    BillingPeriod.objects.filter(pk=current.pk).update(closed_at=timezone.now())
    period, correction = open_period(tenant.pk, timezone.now())
    assert correction
    assert period.starts_at == current.ends_at


@pytest.mark.django_db(transaction=True)
def test_a_period_is_held_by_a_transaction():
    tenant = add_tenant()
    with pytest.raises(RuntimeError):
        open_period(tenant.pk, timezone.now())


@pytest.mark.django_db(transaction=True)
def test_needed_by_many_at_once_it_is_made_once():
    tenant = add_tenant()
    now = timezone.now()
    made = run_together(lambda: period_at(tenant.pk, now), 6)
    assert len({period.pk for period in made}) == 1
    assert BillingPeriod.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_made_while_the_zone_changes_months_still_meet():
    tenant = add_tenant()
    now = period_at(tenant.pk, timezone.now()).ends_at
    zones = iter(["Pacific/Niue", "Pacific/Kiritimati", "UTC"] * 2)
    moments = iter([now + 40 * DAY, now + 5 * DAY, now + 70 * DAY] * 2)

    def change() -> None:
        change_time_zone(tenant.pk, next(zones), actor="user:pat")
        period_at(tenant.pk, next(moments))

    run_together(change, 6)
    found = list(BillingPeriod.objects.order_by("starts_at"))
    assert len(found) == 4
    for one, other in pairwise(found):
        assert one.ends_at == other.starts_at


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "starts_at", "ends_at"),
    [
        ("2026-12", "2026-11-30T23:00", "2026-12-31T00:00"),
        ("2026-10", "2026-10-02T00:00", "2026-11-01T00:00:01"),
        ("2025-01", "2026-11-05T00:00", "2026-11-06T00:00"),
    ],
)
def test_the_database_refuses_periods_that_overlap(name, starts_at, ends_at):
    tenant = add_tenant()
    period_named(tenant.pk, "2026-11")
    with pytest.raises(IntegrityError, match="periods_do_not_overlap"), transaction.atomic():
        BillingPeriod.objects.create(
            tenant=tenant, name=name, starts_at=at(starts_at), ends_at=at(ends_at), time_zone="UTC"
        )
