"""Every page of billing opens with data, escapes what strangers wrote, and stays cheap."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing.models import AuditEntry, LedgerEntry, Settlement
from streaming.core.ids import uuid7
from tests.billing.admin.books import (
    FINANCE,
    SCRIPT,
    Books,
    fill_other_tables,
    interrupted_session,
    keep_books,
    page,
    person,
)

pytestmark = pytest.mark.django_db

MODELS = sorted(
    model._meta.model_name for model in admin.site._registry if model._meta.app_label == "billing"
)
READ_ONLY = [
    "auditentry", "budgetalert", "billingperiod", "bulkcredit", "creditrequest", "eventdelivery", "export",
    "ledgerentry", "quotause", "settlement", "usagerecord",
]  # fmt: skip


@pytest.fixture
def books() -> Books:
    kept = keep_books()
    fill_other_tables(kept)
    return kept


@pytest.fixture
def finance(books):
    return person("fin", FINANCE)


def first_id(model: str):
    return apps.get_model("billing", model).objects.values_list("pk", flat=True)[0]


def test_every_table_that_finance_asks_about_is_there():
    unseen = {
        "audithead",
        "bulkcreditline",
        "periodtotal",
        "priceplan",
        "quotareservation",
        "waste",
    }
    all_of_them = {model._meta.model_name for model in apps.get_app_config("billing").get_models()}
    assert set(MODELS) == all_of_them - unseen


@pytest.mark.parametrize("model", MODELS)
def test_list_and_detail_open_and_escape(finance, admin_client, model):
    for client in (finance, admin_client):
        for html in (page(client, model), page(client, model, "change", first_id(model))):
            assert SCRIPT not in html
            assert "<script>alert" not in html


@pytest.mark.parametrize("model", READ_ONLY)
def test_what_was_booked_is_not_changed_even_by_a_superuser(admin_client, books, model):
    pk = first_id(model)
    table = apps.get_model("billing", model).objects
    before = list(table.order_by("pk").values())
    for name in ("change", "delete"):
        url = reverse(f"admin:billing_{model}_{name}", args=[pk])
        assert admin_client.post(url, {"post": "yes"}).status_code == 403
    url = reverse(f"admin:billing_{model}_changelist")
    data = {"action": "delete_selected", "_selected_action": [pk], "post": "yes"}
    admin_client.post(url, data)
    assert list(table.order_by("pk").values()) == before


@pytest.mark.parametrize("model", MODELS)
def test_without_the_permission_to_view_nothing_is_shown(books, model):
    nobody = person("nobody", ["view_tenant"])
    assert nobody.get(reverse(f"admin:billing_{model}_changelist")).status_code == 403
    url = reverse(f"admin:billing_{model}_change", args=[first_id(model)])
    assert nobody.get(url).status_code == 403


@pytest.mark.parametrize("model", [*READ_ONLY, "billingaccount", "pricelist", "usagesink"])
def test_a_list_takes_as_many_queries_for_many_rows_as_for_few(finance, model):
    page(finance, model)  # content types and permissions are looked up once
    with CaptureQueriesContext(connection) as few:
        page(finance, model)
    for number in range(3):
        fill = keep_books(f"tenant-{number}")
        interrupted_session(fill.tenant)
    with CaptureQueriesContext(connection) as many:
        page(finance, model)
    assert len(many) == len(few)


def test_the_bill_of_a_session_is_on_one_page(finance, books):
    html = page(finance, "usagerecord", "change", books.story.session.pk)
    for figure in (
        "0.00142 EUR", "-0.000015 EUR", "0.0002145 EUR",  # its lines
        "0.0016195 EUR", "-0.0001 EUR", "0.0015195 EUR",  # charged, credited, in all
        "0 → 600", "600 → 590", "590 → 733",
        "engine crash", "gpu-1", "0.0000024 EUR",  # waste at cost
        "(in force)", "interrupt_compensated",
        "acknowledged 733", "the reader said that it has it",
        "session.interrupted",
    ):  # fmt: skip
        assert figure in html.replace("engine_crash", "engine crash"), figure


def test_the_bill_takes_as_many_queries_for_a_hundred_lines(finance, books):
    pk = books.story.session.pk
    page(finance, "usagerecord", "change", pk)
    with CaptureQueriesContext(connection) as few:
        page(finance, "usagerecord", "change", pk)
    last = Settlement.objects.filter(usage_id=pk).latest("n")
    for n in range(4, 104):
        last.pk, last.n = None, n
        last.save(force_insert=True)
    with CaptureQueriesContext(connection) as many:
        page(finance, "usagerecord", "change", pk)
    assert len(many) == len(few)


def test_the_audit_log_on_the_bill_takes_its_own_permission(books):
    reader = person("reader", ["view_usagerecord"])
    html = page(reader, "usagerecord", "change", books.story.session.pk)
    assert "0.0016195 EUR" in html
    assert "session.interrupted" not in html


@pytest.mark.parametrize(
    ("model", "find", "found"),
    [
        ("ledgerentry", "{session}", True),
        ("ledgerentry", "{start}", True),
        ("ledgerentry", "{entry}", True),
        ("ledgerentry", "settlement:{session}:1", True),
        ("ledgerentry", "{other}", False),
        ("ledgerentry", "acme", False),
        ("settlement", "{session}", True),
        ("settlement", "{other}", False),
        ("usagerecord", "{start}", True),
        ("usagerecord", "{other}", False),
        ("auditentry", "{session}", True),
        ("auditentry", "ledger:{entry}", True),
        ("auditentry", "ledger.charge", True),
        ("auditentry", "ledger:", True),
        ("auditentry", "node.drain", False),
        ("auditentry", "%", False),
    ],
)
def test_a_line_is_found_by_what_people_hold(finance, books, model, find, found):
    session = str(books.story.session.pk)
    term = find.format(session=session, start=session[:13], entry=books.charge.pk, other=uuid7())
    assert (session in page(finance, model, q=term)) is found


def test_the_ledger_is_filtered(finance, books):
    other = keep_books("globex")
    ours, theirs = str(books.story.session.pk), str(other.story.session.pk)
    html = page(finance, "ledgerentry", tenant=other.tenant.pk)
    assert theirs in html
    assert ours not in html
    html = page(
        finance, "ledgerentry", period=books.charge.period_id, kind="credit", currency="EUR"
    )
    assert "-0.0001 EUR" in html
    assert "0.00142 EUR" not in html
    wrong = finance.get(reverse("admin:billing_ledgerentry_changelist"), {"tenant": "x"})
    assert wrong.status_code == 302  # to the list without it


@pytest.mark.parametrize("field", ["tenant", "period"])
def test_the_filters_find_by_typing(finance, books, field):
    query = {"app_label": "billing", "model_name": "ledgerentry", "field_name": field, "term": "ac"}
    found = finance.get(reverse("admin:autocomplete"), query).json()["results"]
    assert [row["text"] for row in found if "acme" in row["text"]]


def test_a_filtered_list_of_many_rows_is_estimated_and_not_counted(finance, books, monkeypatch):
    monkeypatch.setattr("streaming.admin.read_only.EstimatingPaginator.exact_up_to", 0)
    with CaptureQueriesContext(connection) as seen:
        page(finance, "ledgerentry", kind="charge")
    counts = [
        one["sql"] for one in seen if "COUNT(" in one["sql"] and "billing_ledger" in one["sql"]
    ]
    assert counts == []
    assert LedgerEntry.objects.count() == 4
    assert AuditEntry.objects.exists()


NAMES = (
    "q", "currency", "kind", "state", "model", "action", "actor", "format", "tenant", "period", "cause",
    "decision", "kind__exact", "actor__startswith", "tenant__name",
)  # fmt: skip


@pytest.mark.parametrize("model", sorted(admin.site._registry, key=lambda model: model._meta.label))
def test_no_query_with_a_nul_is_an_error(admin_client, model):
    """Whatever can be asked for by a list: PostgreSQL's text has no NUL."""
    place = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    for name in NAMES:
        answer = admin_client.get(reverse(f"{place}_changelist"), {name: "a\x00"})
        assert answer.status_code in (200, 302, 400), name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("ledgerentry", "currency"), ("ledgerentry", "kind"), ("settlement", "kind"),
        ("auditentry", "q"), ("export", "format"),
    ],
)  # fmt: skip
def test_a_value_with_a_nul_is_one_that_no_row_has(finance, model, name):
    answer = finance.get(reverse(f"admin:billing_{model}_changelist"), {name: "\x00"})
    assert answer.status_code == 200
    assert not answer.context["cl"].result_list


def test_what_is_typed_to_find_a_row_may_hold_a_nul(finance):
    query = {"app_label": "billing", "model_name": "ledgerentry", "field_name": "tenant"}
    answer = finance.get(reverse("admin:autocomplete"), {**query, "term": "a\x00"})
    assert answer.json()["results"] == []
