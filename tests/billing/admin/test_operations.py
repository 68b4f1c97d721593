"""What finance does in the admin: prices, credits with a second person, accounts, sinks."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from typing import Any

import pytest
from django.urls import reverse

from billing.models import (
    AuditEntry,
    BillingAccount,
    CreditRequest,
    EventDelivery,
    LedgerEntry,
    PriceList,
    PricePlan,
    UsageSink,
)
from billing.services import sinks
from tests.billing.admin.books import FINANCE, SCRIPT, Books, act, keep_books, page, person, send
from tests.billing.rows import add_tenant

pytestmark = pytest.mark.django_db

PRICES = {
    "currency": "EUR", "input_per_million": "0.50", "cached_input_per_million": "0.10",
    "output_per_million": "1.50", "cost_per_million": "", "coefficient": "1", "policy": "delivered",
    "effective_from_0": "", "effective_from_1": "", "note": "",
}  # fmt: skip


@pytest.fixture
def books() -> Books:
    return keep_books()


@pytest.fixture
def finance(db):
    return person("fin", FINANCE)


@pytest.fixture
def second(db):
    return person("second", ["view_creditrequest", "view_ledgerentry", "approve_credit"])


def entries(kind: str) -> list[LedgerEntry]:
    return list(LedgerEntry.objects.filter(kind=kind, settlement=None).order_by("pk"))


def audited() -> list[tuple[str, str]]:
    """Actions of people, in their order."""
    return list(
        AuditEntry.objects.filter(actor__startswith="user:")
        .order_by("seq")
        .values_list("action", "actor")
    )


def credit(client, *charges: LedgerEntry, amount: str = "", reason: str = "late", key: str = "k"):
    chosen = "&".join(f"charge={charge.pk}" for charge in charges)
    return send(client, "ledgerentry", "credit", to=chosen, amount=amount, reason=reason, key=key)


# --- credits ----------------------------------------------------------------------------------------


def test_a_charge_is_credited_once_however_often_the_form_is_sent(finance, books):
    asked = act(finance, "ledgerentry", "credit_selected", books.charge)
    assert "0.00142 EUR" in asked.text
    url = asked.redirect_chain[-1][0]
    key = re.search(r'name="key" value="([^"]+)"', asked.text)[1]
    for _ in range(2):
        finance.post(url, {"amount": "0.001", "reason": SCRIPT, "key": key})
    (booked,) = entries("credit")
    assert (booked.amount, booked.reason, booked.actor) == (Decimal("-0.001"), SCRIPT, "user:fin")
    assert booked.charge_id == books.charge.pk
    assert ("ledger.credit", "user:fin") in audited()
    html = page(finance, "ledgerentry", "change", books.charge.pk)
    assert "-0.001 EUR" in html  # its credits
    assert "0.000405 EUR" in html  # what is left: the settlement has given back 0.000015 besides
    assert SCRIPT not in html


def test_without_an_amount_all_that_is_left_is_credited(finance, books):
    credit(finance, books.charge)
    (booked,) = entries("credit")
    assert booked.amount == Decimal("-0.001405")
    assert "above 0" in credit(finance, books.charge, key="other").text  # nothing is left
    assert len(entries("credit")) == 1


def test_more_than_is_left_is_refused_in_words(finance, books):
    refused = credit(finance, books.charge, amount="0.002")
    assert "is more than is left" in refused.text
    assert entries("credit") == []


@pytest.mark.parametrize(
    "wrong",
    [{"amount": "-1"}, {"amount": "0"}, {"amount": "1e-30"}, {"amount": "x"}, {"reason": " "}],
)
def test_a_credit_that_is_none_is_not_booked(finance, books, wrong):
    assert "correct what is marked" in credit(finance, books.charge, **wrong).text
    assert entries("credit") == []


def test_several_charges_are_credited_with_one_reason(finance, books):
    other = keep_books("globex")
    credit(finance, books.charge, other.charge, reason="the outage of Tuesday")
    assert {(one.tenant_id, one.reason) for one in entries("credit")} == {
        (books.tenant.pk, "the outage of Tuesday"),
        (other.tenant.pk, "the outage of Tuesday"),
    }


def test_only_charges_can_be_credited(finance, books):
    credit(finance, books.charge, amount="0.0001")
    (booked,) = entries("credit")
    assert "Only charges" in act(finance, "ledgerentry", "credit_selected", booked).text
    url = reverse("admin:billing_ledgerentry_credit")
    for query in ("", f"?charge={booked.pk}", "?charge=x"):
        assert finance.get(url + query).status_code == 404


def test_a_large_credit_takes_a_second_person(finance, second, books, settings):
    large(settings, "0.001")
    waits = credit(finance, books.charge, amount="0.0013", reason="goodwill")
    assert "waits for a second person" in waits.text
    assert entries("credit") == []
    request = CreditRequest.objects.get()
    assert (request.decision, request.requested_by) == ("pending", "user:fin")

    assert "Approve them?" in act(second, "creditrequest", "approve", request, confirmed=False).text
    assert entries("credit") == []
    act(second, "creditrequest", "approve", request)
    (booked,) = entries("credit")
    assert (booked.amount, booked.reason) == (Decimal("-0.0013"), "goodwill")
    request.refresh_from_db()
    assert (request.decision, request.decided_by, request.entry_id) == (
        "approved", "user:second", booked.pk,
    )  # fmt: skip
    assert audited() == [
        ("credit.requested", "user:fin"),
        ("ledger.credit", "user:fin"),
        ("credit.approved", "user:second"),
    ]


def test_nobody_approves_their_own(books, settings):
    large(settings, "0.001")
    both = person("both", {*FINANCE, "approve_credit"})
    credit(both, books.charge, amount="0.0013")
    request = CreditRequest.objects.get()
    assert "takes a second person" in act(both, "creditrequest", "approve", request).text
    assert entries("credit") == []


def test_a_request_is_refused(finance, second, books, settings):
    large(settings, "0.001")
    credit(finance, books.charge, amount="0.0013")
    act(second, "creditrequest", "refuse", CreditRequest.objects.get())
    assert CreditRequest.objects.get().decision == "refused"
    assert entries("credit") == []


def test_an_adjustment_is_booked(finance, books):
    send(
        finance, "ledgerentry", "adjust",
        tenant=books.tenant.pk, currency="EUR", amount="-12.30", reason="annual discount", key="k",
    )  # fmt: skip
    (booked,) = entries("adjustment")
    assert (booked.tenant, booked.amount) == (books.tenant, Decimal("-12.30"))


def large(settings: Any, above: str) -> None:
    """Let credits above this amount take a second person."""
    settings.BILLING = dataclasses.replace(settings.BILLING, credit_approval_above=above)


# --- permissions ------------------------------------------------------------------------------------

FORMS = {
    "ledgerentry_credit": "book_credit",
    "ledgerentry_adjust": "book_credit",
    "export_make": "export_ledger",
    "pricelist_add": "add_priceplan",
    "pricelist_prices": "add_priceplan",
    "pricelist_end": "add_priceplan",
    "billingperiod_close": "change_billingperiod",
    "auditentry_verify": "view_auditentry",
    "billingperiod_reconcile": "view_billingperiod",
}


def form_url(name: str, books: Books) -> str:
    view = name.rpartition("_")[2]
    keys = {"prices": books.plan.list_id, "end": books.plan.list_id}
    keys |= {"close": books.charge.period_id, "reconcile": books.charge.period_id}
    url = reverse(f"admin:billing_{name}", args=[keys[view]] if view in keys else [])
    return f"{url}?charge={books.charge.pk}" if view == "credit" else url


@pytest.mark.parametrize("name", FORMS)
def test_each_page_takes_its_permission(books, name):
    needed = FORMS[name]
    url = form_url(name, books)
    # Who may change periods may view them.
    lacks = {needed, "change_billingperiod"} if needed == "view_billingperiod" else {needed}
    without = person("without", {*FINANCE, "approve_credit"} - lacks)
    before = LedgerEntry.objects.count(), PricePlan.objects.count()
    for answer in (without.get(url), without.post(url, {"amount": "1", "reason": "x", "key": "k"})):
        assert answer.status_code == 403
    assert (LedgerEntry.objects.count(), PricePlan.objects.count()) == before
    assert person("with", [needed]).get(url).status_code == 200


def test_actions_take_their_permissions(books, settings):
    large(settings, "0")
    credit(person("fin", FINANCE), books.charge)
    request = CreditRequest.objects.get()
    reader = person("reader", [name for name in FINANCE if name.startswith("view_")])
    act(reader, "creditrequest", "approve", request)
    act(reader, "ledgerentry", "credit_selected", books.charge)
    act(reader, "billingperiod", "close", books.charge.period)
    assert entries("credit") == []
    assert CreditRequest.objects.get().decision == "pending"
    books.charge.period.refresh_from_db()
    assert books.charge.period.closed_at is None


def test_links_are_only_shown_to_who_may_follow_them(books):
    reader = person("reader", [name for name in FINANCE if name.startswith("view_")])
    shown = (
        page(reader, "ledgerentry")
        + page(reader, "ledgerentry", "change", books.charge.pk)
        + page(reader, "billingperiod", "change", books.charge.period_id)
        + page(reader, "pricelist", "change", books.plan.list_id)
        + page(reader, "export")
    )
    for words in ("Credit…", "adjustment…", "Close…", "Export…", "Make an export", "New prices"):
        assert words not in shown


# --- prices -----------------------------------------------------------------------------------------


def test_prices_are_set_and_followed_by_others(finance):
    tenant = add_tenant()
    send(finance, "pricelist", "add", tenant=tenant.pk, model="m", **PRICES)
    prices = PriceList.objects.get()
    assert (prices.tenant, prices.model) == (tenant, "m")
    send(finance, "pricelist", "prices", prices.pk, **{**PRICES, "output_per_million": "2"})
    first, then = PricePlan.objects.order_by("effective_from")
    assert (first.output_per_million, then.output_per_million) == (Decimal("1.5"), Decimal(2))
    assert first.effective_to == then.effective_from
    assert then.created_by == "user:fin"
    actions = ("price.set", "price.ended", "price.set")
    assert audited() == [(action, "user:fin") for action in actions]
    html = page(finance, "pricelist", "change", prices.pk)
    assert "1.50 EUR" in html
    assert "2.00 EUR" in html
    assert "0.5 / 0.1 / 2.00 EUR" in page(finance, "pricelist")


def test_prices_of_a_moment_to_come_are_withdrawn(finance, books):
    later = {"effective_from_0": "2999-01-01", "effective_from_1": "00:00"}
    prices = books.plan.list
    send(finance, "pricelist", "prices", prices.pk, **{**PRICES, **later})
    assert PricePlan.objects.count() == 2
    assert "Withdraw the latest" in page(finance, "pricelist", "change", prices.pk)
    send(finance, "pricelist", "end", prices.pk)
    only = PricePlan.objects.get()
    assert only.effective_to is None


def test_prices_end_without_others(finance, books):
    prices = books.plan.list
    refused = send(
        finance, "pricelist", "end", prices.pk, effective_to_0="2021-01-01", effective_to_1="00:00"
    )
    assert "from now on" in refused.text
    send(
        finance, "pricelist", "end", prices.pk, effective_to_0="2999-01-01", effective_to_1="00:00"
    )
    assert PricePlan.objects.get().effective_to.year == 2999


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"input_per_million": "-1"}, "greater than or equal"),
        ({"input_per_million": "1_0"}, "Enter a number"),
        ({"coefficient": "1_0"}, "Enter a number"),
        ({"currency": "eur"}, "Use a code like EUR"),
        ({"output_per_million": "0.123456789"}, "no more than 8 decimal places"),
        ({"policy": "interrupt_compensated"}, "name the contract"),
        ({"policy": "everything"}, "not one of the available choices"),
        (
            {"effective_from_0": "2020-01-02", "effective_from_1": "00:00"},
            "was settled without them",
        ),
    ],
)
def test_prices_that_cannot_be_are_not_set(finance, books, wrong, words):
    refused = send(finance, "pricelist", "prices", books.plan.list_id, **{**PRICES, **wrong})
    assert words in refused.text
    assert PricePlan.objects.count() == 1


# --- accounts and sinks -----------------------------------------------------------------------------

LIMITS = {
    "legal_name": "Acme & Sons", "time_zone": "Europe/Berlin", "token_limit": "1000000",
    "spend_limit": "250.50", "spend_currency": "EUR", "limits_are_hard": "on",
}  # fmt: skip


def test_an_amount_is_what_commands_take_for_one(finance, books):
    typed = {**LIMITS, "spend_limit": "2_50"}
    url = reverse("admin:billing_billingaccount_change", args=[books.tenant.pk])
    assert "Enter a number" in finance.post(url, typed).text
    values = {"tenant": books.tenant.pk, "currency": "EUR", "reason": "r", "key": "k"}
    refused = send(finance, "ledgerentry", "adjust", amount="1_0", **values)
    assert "Enter a number" in refused.text
    assert not entries("adjustment")


def test_an_account_is_changed_by_its_service(finance, books):
    send(finance, "billingaccount", "change", books.tenant.pk, **LIMITS)
    account = BillingAccount.objects.get()
    assert (account.legal_name, account.time_zone) == ("Acme & Sons", "Europe/Berlin")
    assert (account.token_limit, account.spend_limit) == (1_000_000, Decimal("250.5"))
    assert {actor for _, actor in audited()} == {"user:fin"}
    assert "account.change" in {action for action, _ in audited()}
    assert "Europe/Berlin" in page(finance, "billingaccount")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"spend_currency": ""}, "needs its currency"),
        ({"time_zone": "Mars/Olympus"}, "is no time zone"),
        ({"token_limit": "-1"}, "cannot be negative"),
    ],
)
def test_an_account_that_cannot_be_stays_as_it_was(finance, books, wrong, words):
    refused = send(finance, "billingaccount", "change", books.tenant.pk, **{**LIMITS, **wrong})
    assert words in refused.text
    account = BillingAccount.objects.get()
    assert (account.legal_name, account.time_zone, account.token_limit) == ("", "UTC", None)
    assert audited() == []


@pytest.fixture
def integrator(db):
    return person(
        "integrator", ["view_usagesink", "add_usagesink", "change_usagesink", "view_tenant"]
    )


SINK = {
    "name": "collector", "kind": "webhook", "tenant": "", "url": "https://collector.example/events",
    "credential": "", "options": "{}", "enabled": "on",
}  # fmt: skip


def test_a_sink_is_added_switched_off_and_given_a_new_secret(integrator):
    added = send(integrator, "usagesink", "add", **SINK)
    sink = UsageSink.objects.get()
    former = sinks.secret_of(sink)
    assert former in added.text
    act(integrator, "usagesink", "switch_off", sink)
    sink.refresh_from_db()
    assert not sink.enabled
    act(integrator, "usagesink", "rotate", sink)
    sink.refresh_from_db()
    assert sinks.secret_of(sink) != former
    assert sinks.secret_of(sink) in page(integrator, "usagesink", "change", sink.pk)
    assert audited() == [
        ("usage_sink.add", "user:integrator"),
        ("usage_sink.disable", "user:integrator"),
        ("usage_sink.rotate", "user:integrator"),
    ]


def test_a_sink_is_tested_and_told_again_what_failed(integrator):
    send(integrator, "usagesink", "add", **SINK)
    sink = UsageSink.objects.get()
    act(integrator, "usagesink", "send_test", sink)
    delivery = EventDelivery.objects.get()
    EventDelivery.objects.update(state="failed", tries=12)
    act(integrator, "usagesink", "send_again", sink)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.tries) == ("pending", 0)


def test_the_secret_of_a_sink_takes_the_permission_to_change_it(integrator, finance):
    send(integrator, "usagesink", "add", **SINK)
    sink = UsageSink.objects.get()
    html = page(finance, "usagesink", "change", sink.pk)
    assert sinks.secret_of(sink) not in html
    assert "takes the permission to change sinks" in html


@pytest.mark.parametrize(
    "wrong",
    [{"url": "http://collector.example"}, {"credential": "s3cret"}, {"kind": "stripe"}],
)
def test_a_sink_that_cannot_be_is_not_added(integrator, wrong):
    send(integrator, "usagesink", "add", **{**SINK, **wrong})
    assert not UsageSink.objects.exists()
    assert audited() == []
