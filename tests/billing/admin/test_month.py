"""Finance closes a month in the admin, proves it, and exports it."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.models import BillingPeriod, Export, PeriodTotal
from billing.services.settlement import settle_due
from streaming.models import OutboxMessage
from tests.billing.admin.books import FINANCE, act, keep_books, page, person, send
from tests.billing.rows import add_plan, add_tenant, ended_session

# Exports are written outside of any transaction, and a month is looked at in one of its own.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def finance(db) -> Client:
    return person("fin", FINANCE)


@pytest.fixture
def last_month() -> BillingPeriod:
    """A month that is over, with three sessions of one tenant."""
    add_plan(input="100", cached="0", output="5000")
    first = timezone.now().replace(day=1)
    tenant = add_tenant("acme", created_at=first - timedelta(days=10))
    for _ in range(3):
        ended_session(7, tenant=tenant, at=first - timedelta(days=1))
    settle_due()
    return BillingPeriod.objects.get()


def test_a_month_is_closed_after_its_checklist(finance, last_month):
    html = page(finance, "billingperiod", "close", last_month.pk)
    assert "ledger, settlements and log agree" in html
    assert "✗ no" not in html
    closed = send(finance, "billingperiod", "close", last_month.pk, close="Close")
    assert "is closed." in closed.text
    last_month.refresh_from_db()
    assert last_month.closed_by == "user:fin"
    total = PeriodTotal.objects.get()
    assert (str(total.exact.normalize()), str(total.rounded.normalize())) == ("0.108", "0.11")
    html = page(finance, "billingperiod", "change", last_month.pk)
    for words in ("0.108 EUR", "0.11 EUR", "half_even", "✓ yes", "closed 20"):
        assert words in html
    assert "Close…" not in html


def test_what_is_not_in_order_is_put_up_with_by_name(finance, last_month):
    ended_session(7, tenant=last_month.tenant, at=last_month.ends_at - timedelta(hours=1))
    html = page(finance, "billingperiod", "close", last_month.pk)
    assert "✗ no" in html
    refused = send(finance, "billingperiod", "close", last_month.pk, close="Close")
    assert "cannot be closed" in refused.text
    last_month.refresh_from_db()
    assert last_month.closed_at is None
    named = re.findall(r'name="despite" value="(\w+)"', html)
    assert named
    send(finance, "billingperiod", "close", last_month.pk, close="Close", despite=named)
    last_month.refresh_from_db()
    assert last_month.closed_at is not None
    assert last_month.checklist["despite"] == sorted(named)
    assert "no, put up with" in page(finance, "billingperiod", "change", last_month.pk)


def test_a_month_that_runs_cannot_be_closed(finance):
    books = keep_books()
    period = books.charge.period
    html = page(finance, "billingperiod", "close", period.pk)
    assert "the period is over: it ends at" in html
    assert 'name="close"' not in html
    send(finance, "billingperiod", "close", period.pk, close="Close", despite=["not_over"])
    period.refresh_from_db()
    assert period.closed_at is None


def test_periods_are_closed_together(finance, last_month):
    running = keep_books("globex").charge.period
    told = act(finance, "billingperiod", "close", last_month, running)
    assert "cannot be closed: not_over" in told.text
    last_month.refresh_from_db()
    running.refresh_from_db()
    assert (last_month.closed_by, running.closed_by) == ("user:fin", "")


def test_a_large_month_is_looked_at_when_asked(finance, last_month, monkeypatch):
    monkeypatch.setattr("billing.admin.period.LARGE", 2)
    for view, shown in (("close", "ledger, settlements and log agree"), ("reconcile", "0.108 EUR")):
        asked = page(finance, "billingperiod", view, last_month.pk)
        assert "more than 2 lines" in asked
        assert shown not in asked
        assert shown in send(finance, "billingperiod", view, last_month.pk, look="Look").text


def test_a_month_is_proven(finance, last_month):
    html = page(finance, "billingperiod", "reconcile", last_month.pk)
    assert "Ledger = settlements = log." in html
    assert "0.108 EUR" in html
    ended_session(7, tenant=last_month.tenant, at=last_month.ends_at - timedelta(hours=1))
    OutboxMessage.objects.all().delete()  # so that billing never hears of it
    html = page(finance, "billingperiod", "reconcile", last_month.pk)
    assert "There are differences:" in html
    assert "unsettled" in html


def test_a_month_is_exported_and_downloaded(finance, last_month):
    form = page(
        finance, "export", "make", period=last_month.name, tenant=last_month.tenant_id, format="csv"
    )
    assert last_month.name in form
    assert "acme" in form  # chosen already
    send(
        finance, "export", "make", period=last_month.name, tenant=last_month.tenant_id, format="csv"
    )
    export = Export.objects.get()
    assert (export.rows, export.requested_by) == (3, "user:fin")
    html = page(finance, "export", "change", export.pk)
    (file,) = export.manifest["files"]
    assert file["sha256"] in html
    assert file["sha256"][:12] in page(finance, "export")
    url, manifest_url = re.findall(r'<a href="([^"]+)" download>', html)
    assert sha256(finance, url) == file["sha256"]
    assert json.loads(body(finance, manifest_url))["rows"] == 3

    reader = person("reader", ["view_export"])
    html = page(reader, "export", "change", export.pk)
    assert file["sha256"] in html
    assert " download>" not in html


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"period": "2026-13"}, "is no month"), ({"period": "2019-01"}, "there is no such period")],
)
def test_an_export_that_cannot_be_is_refused_in_words(finance, last_month, wrong, words):
    asked = {"period": last_month.name, "format": "csv", **wrong}
    assert words in send(finance, "export", "make", **asked).text
    assert not Export.objects.exists()


def test_the_statement_is_a_click_away(finance, last_month):
    html = page(finance, "billingperiod", "change", last_month.pk)
    url = reverse("billing:statement", args=[last_month.pk])
    assert url in html
    assert "Statement for" in finance.get(url).text


def test_the_audit_log_is_verified(finance):
    keep_books()
    assert "entries were checked" not in page(finance, "auditentry", "verify")
    told = send(finance, "auditentry", "verify")
    assert "Whole." in told.text


def body(client: Client, url: str) -> bytes:
    response = client.get(url)
    assert response.status_code == 200
    return b"".join(response.streaming_content)


def sha256(client: Client, url: str) -> str:
    return hashlib.sha256(body(client, url)).hexdigest()
