"""A statement's totals are the ledger's, and it says everything that makes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from billing.core.money import EXACT, plain, rounded
from billing.errors import ExportFailed
from billing.exports import statement as statements
from billing.exports.run import export
from billing.exports.statement import statement
from billing.models import BillingAccount, BillingPeriod, LedgerEntry, PeriodTotal
from billing.services.periods import account_of
from tests.billing.exports import books
from tests.billing.rows import add_plan, add_tenant

pytestmark = pytest.mark.django_db


def november(tenant) -> BillingPeriod:
    return BillingPeriod.objects.select_related("tenant").get(tenant=tenant, name="2026-11")


def exact(told: dict) -> dict[str, Decimal]:
    return {one["currency"]: Decimal(one["exact"]) for one in told["currencies"]}


def test_its_totals_are_the_ledgers():
    for tenant in books.a_month().values():
        told = statement(november(tenant))
        booked = books.ledger_sums(tenant=tenant)
        assert exact(told) == booked
        for one in told["currencies"]:
            rows = [*one["usage"], *one["bookings"]]
            summed = Decimal(0)
            for row in rows:
                summed = EXACT.add(summed, Decimal(row["total"]))
            assert summed == booked[one["currency"]]
            assert Decimal(one["rounded"]) == rounded(summed, one["currency"])
            lines = LedgerEntry.objects.filter(tenant=tenant, currency=one["currency"])
            assert one["lines"] == lines.count() == sum(row["lines"] for row in rows)


def test_usage_is_by_model_cost_centre_and_price():
    acme = add_tenant()
    cheap, dear = add_plan(input="1", cached="0.5", output="2"), add_plan(acme, output="3")
    for _ in range(3):
        books.charge(acme, plan=cheap, cost_centre="a", prompt=10, cached=4, output=100)
    books.charge(acme, plan=cheap, cost_centre="b", output=1)
    books.charge(acme, plan=dear, cost_centre="a", output=1)
    books.give_back(
        books.charge(acme, plan=cheap, cost_centre="a", model="other", prompt=10, output=2)
    )
    (euros,) = statement(november(acme))["currencies"]
    shown = [
        (
            row["model"],
            row["cost_centre"],
            row["kind"],
            row["lines"],
            row["input"],
            row["cached"],
            row["output"],
        )
        for row in euros["usage"]
    ]
    assert sorted(shown) == [
        ("m", "a", "charge", 1, 10, 0, 1), ("m", "a", "charge", 3, 30, 12, 300),
        ("m", "b", "charge", 1, 10, 0, 1), ("other", "a", "charge", 1, 10, 0, 2),
        ("other", "a", "credit", 1, -10, 0, -2),
    ]  # fmt: skip
    assert (euros["input"], euros["cached"], euros["output"]) == (50, 12, 302)


def test_a_closed_period_shows_what_was_written_down():
    acme = books.a_month()["acme"]
    provisional = statement(november(acme))
    books.close(november(acme), account_name="Acme GmbH", issuer="Gateway AG")
    final = statement(november(acme))
    (total,) = PeriodTotal.objects.all()
    assert [Decimal(one["rounded"]) for one in final["currencies"]] == [total.rounded]
    assert (final["account_name"], final["issuer"]) == ("Acme GmbH", "Gateway AG")
    assert exact(final) == exact(provisional)
    BillingAccount.objects.filter(pk=acme.pk).update(legal_name="Renamed")
    assert statement(november(acme))["checksum"] == final["checksum"] != provisional["checksum"]


def test_a_ledger_that_is_not_what_was_closed_is_not_shown(client):
    books.charge()
    period = BillingPeriod.objects.get()
    books.close(period)
    books.slip_in()
    with pytest.raises(ExportFailed, match="was closed with"):
        statement(november(period.tenant))
    client.force_login(User.objects.create_superuser("root"))
    assert client.get(reverse("billing:statement", args=[period.pk])).status_code == 409


def test_many_bookings_are_summed_up(monkeypatch):
    acme = add_tenant()
    for number in range(7):
        books.adjust(
            acme, f"{number}.5", f"number {number}", currency="EUR" if number % 2 else "JPY"
        )
    monkeypatch.setattr(statements, "LISTED", 3)
    told = statement(november(acme))
    assert exact(told) == books.ledger_sums()
    yen = told["currencies"][1]
    assert [row["reason"] for row in yen["bookings"]] == [
        "number 0", "number 2", "and 2 more, which the export lists",
    ]  # fmt: skip
    assert (yen["lines"], yen["rounded"]) == (4, "14")


def test_the_page(client):
    acme = books.a_month()["acme"]
    books.adjust(acme, "1", "<b>bold</b>")
    made = export(period_name="2026-11", format="csv", actor="user:pat", tenant_id=acme.pk)
    client.force_login(User.objects.create_superuser("root"))
    period = november(acme)
    url = reverse("billing:statement", args=[period.pk])
    page = client.get(url).text
    assert "Provisional" in page
    told = statement(period)
    for text in (
        "Acme &amp; Söhne", plain(books.ledger_sums(tenant=acme)["EUR"]), "&lt;b&gt;bold&lt;/b&gt;",
        "given back", "山田", told["checksum"], made.manifest["files"][0]["sha256"], "team-a",
        told["currencies"][0]["rounded"],
    ):  # fmt: skip
        assert text in page, text
    books.close(period)
    page = client.get(url).text
    assert "Provisional" not in page
    assert re.search(r"Total, rounded once", page)


def test_an_empty_month(client):
    books.periods.period_at(add_tenant().pk, books.NOVEMBER)
    client.force_login(User.objects.create_superuser("root"))
    page = client.get(reverse("billing:statement", args=[BillingPeriod.objects.get().pk])).text
    assert "Nothing was booked" in page


def test_times_are_the_tenants(client):
    tokyo = add_tenant("tokyo")
    account_of(tokyo.pk)
    BillingAccount.objects.filter(pk=tokyo.pk).update(time_zone="Asia/Tokyo")
    books.charge(tokyo, at=datetime(2026, 10, 31, 15, 30, tzinfo=UTC))
    told = statement(november(tokyo))
    assert (told["starts_at"], told["ends_at"], told["time_zone"]) == (
        "2026-11-01 00:00 JST", "2026-12-01 00:00 JST", "Asia/Tokyo",
    )  # fmt: skip
