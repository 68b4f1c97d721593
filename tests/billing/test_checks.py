"""Settings and databases that billing cannot work with are told at start."""

from __future__ import annotations

import dataclasses
import zoneinfo

import pytest
from django.db import connection

from billing import checks
from billing.services.guards import GUARDS


def ids(messages) -> list[str]:
    return [message.id for message in messages]


@pytest.fixture
def with_settings(settings):
    def change(**columns):
        settings.BILLING = dataclasses.replace(settings.BILLING, **columns)

    return change


def test_the_defaults_work():
    for check in (
        checks.check_currency,
        checks.check_credit_approval,
        checks.check_audit_key,
        checks.check_time_zones,
    ):
        assert check(None) == []


@pytest.mark.parametrize("currency", ["eur", "EURO", "€", "", "EU1", "EUX"])
def test_a_currency_is_one_that_there_is(with_settings, currency):
    with_settings(billing_currency=currency)
    assert ids(checks.check_currency(None)) == ["billing.E001"]


@pytest.mark.parametrize("amount", ["a lot", "", "-1", "NaN", "Infinity", "1,50", "1_0"])
def test_what_needs_a_second_person_is_above_an_amount(with_settings, amount):
    with_settings(credit_approval_above=amount)
    assert ids(checks.check_credit_approval(None)) == ["billing.E002"]


def test_an_audit_key_is_long_or_empty(with_settings):
    with_settings(audit_key="short")
    assert ids(checks.check_audit_key(None)) == ["billing.E003"]
    with_settings(audit_key=f"{'k' * checks.AUDIT_KEY_CHARACTERS},short")
    assert ids(checks.check_audit_key(None)) == ["billing.E003"]
    with_settings(audit_key="k" * checks.AUDIT_KEY_CHARACTERS)
    assert checks.check_audit_key(None) == []


def test_without_time_zone_data_no_month_begins(monkeypatch):
    def nothing(name):
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(checks.zoneinfo, "ZoneInfo", nothing)
    assert ids(checks.check_time_zones(None)) == ["billing.E004"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT 1", []),
        ("ALTER TABLE billing_ledgerentry DISABLE TRIGGER append_only", ["billing.E005"]),
        (
            "ALTER TABLE billing_settlement DISABLE TRIGGER USER",
            ["billing.E005"] * len(GUARDS["billing_settlement"]),
        ),
        ("DROP TRIGGER append_only_truncate ON billing_auditentry", ["billing.E005"]),
        ("ALTER TABLE billing_priceplan DROP CONSTRAINT plans_do_not_overlap", ["billing.E005"]),
        (
            "ALTER TABLE billing_billingperiod DROP CONSTRAINT periods_do_not_overlap",
            ["billing.E005"],
        ),
    ],
)
def test_a_guard_that_is_gone_is_missed(statement, found):
    with connection.cursor() as cursor:
        cursor.execute(statement)
    assert ids(checks.check_guards(databases=["default"])) == found


@pytest.mark.django_db
def test_a_database_before_its_migrations_misses_nothing():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_ledgerentry DISABLE TRIGGER USER")
        cursor.execute("DELETE FROM django_migrations WHERE app = 'billing'")
    assert checks.check_guards(databases=["default"]) == []
    assert checks.check_guards(databases=None) == []
