"""What the support desk shows of money, and to whom; credits of an incident from its page."""

from __future__ import annotations

import html
import json
import re
from decimal import Decimal

import pytest
from django.db import connection
from django.template.response import TemplateResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing.admin.desk import Desk
from billing.models import BulkCredit, LedgerEntry
from billing.services import announcements, credits
from streaming.admin.finance import finance
from streaming.core.ids import uuid7
from streaming.services import reviews
from tests.billing.admin.books import FINANCE, SCRIPT, Books, keep_books
from tests.billing.desk.incidents import charges_of, given, incident_of
from tests.billing.rows import ended_session
from tests.desk.staff import ALL, logged_in, member

pytestmark = pytest.mark.django_db

MONEY = [*FINANCE, "credit_incident", "view_incident", ALL]


@pytest.fixture
def books() -> Books:
    return keep_books()


def asked_by(user):
    request = RequestFactory().get("/")
    request.user = user
    return request


def test_billing_is_connected():
    assert isinstance(finance(), Desk)


def test_what_sessions_came_to_takes_one_query(books):
    credits.book_credit(
        charge_id=books.charge.pk, amount=Decimal("0.001"), reason="r", actor="user:pat"
    )
    unsettled = ended_session().session
    with CaptureQueriesContext(connection) as queries:
        found = finance().billed([books.story.session.pk, unsettled.pk, uuid7()])
    assert len(queries) == 1
    assert set(found) == {books.story.session.pk}
    billed = found[books.story.session.pk]
    assert (billed.tokens, billed.amount, billed.currency) == (733, Decimal("0.0006195"), "EUR")


def test_the_panel_of_a_session(books):
    session = books.story.session
    credits.book_credit(
        charge_id=books.charge.pk, amount=Decimal("0.001"), reason=SCRIPT, actor="user:pat"
    )
    shown = finance().session_panel(asked_by(member("fin", FINANCE)), session)
    for words in ("0.0006195 EUR", "0.0016195 EUR charged", "733", "600 → 590", "in force"):
        assert words in shown
    assert SCRIPT not in shown
    assert html.escape(SCRIPT) in shown
    # Who sees usage alone sees no line of the ledger.
    reader = finance().session_panel(asked_by(member("reader", ["view_usagerecord"])), session)
    assert "0.0006195 EUR" in reader
    assert "In the ledger" not in reader
    assert (
        finance().session_panel(asked_by(member("support", ["view_streamsession"])), session) == ""
    )
    unsettled = ended_session().session
    assert "Not settled yet" in finance().session_panel(asked_by(member("f", FINANCE)), unsettled)


def test_the_links_above_a_session(books):
    session = books.story.session
    fin = asked_by(member("fin", FINANCE))
    assert [tool.words for tool in finance().session_tools(fin, session)] == ["Credit…", "Bill"]
    reader = asked_by(member("reader", ["view_usagerecord", "view_ledgerentry"]))
    assert [tool.words for tool in finance().session_tools(reader, session)] == ["Bill"]
    assert list(finance().session_tools(asked_by(member("support")), session)) == []
    left = books.charge.amount - credits.credited(books.charge)
    credits.book_credit(charge_id=books.charge.pk, amount=left, reason="r", actor="user:pat")
    others = LedgerEntry.objects.filter(session_id=session.pk, kind="charge", amount__gt=0)
    for charge in others.exclude(pk=books.charge.pk):
        credits.book_credit(charge_id=charge.pk, amount=charge.amount, reason="r", actor="user:pat")
    assert [tool.words for tool in finance().session_tools(fin, session)] == ["Bill"]


def test_the_audit_log_of_a_session_is_found_by_its_index(books):
    session = books.story.session
    reviews.mark_reviewed(session.pk, note="x", ticket="T-1", by="user:pat")
    announcements.append_waiting()
    with CaptureQueriesContext(connection) as queries:
        rows = finance().audit_rows(session.pk)
    assert rows[0].action == "session.review"
    assert (rows[0].actor, "T-1" in rows[0].data) == ("user:pat", True)
    assert [row.seq for row in rows] == sorted((row.seq for row in rows), reverse=True)
    assert "ledger.charge" in {row.action for row in rows}
    (query,) = queries
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # there are too few rows to choose by
        cursor.execute("EXPLAIN " + query["sql"])
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "billing_auditentry_session_id" in plan


def test_the_evidence_is_json_with_exact_amounts(books):
    told = json.loads(json.dumps(finance().evidence(books.story.session.pk)))
    assert (told["charged"], told["currency"]) == ("0.0016195", "EUR")
    assert [line["amount"] for line in told["settlements"]] == [
        "0.00142", "-0.000015", "0.0002145",
    ]  # fmt: skip
    assert told["tokens"]["billed"] == 733
    assert finance().evidence(uuid7()) == {}


# --- incidents --------------------------------------------------------------------------------------


def begin_page(incident) -> str:
    return reverse("admin:billing_bulkcredit_begin", args=[incident.pk])


def incident_page(incident) -> str:
    return reverse("admin:streaming_incident_change", args=[incident.pk])


def hidden(page: TemplateResponse) -> str:
    found = re.search(r'name="seen" value="(\w+)"', page.text)
    assert found is not None
    return found[1]


def test_an_incident_is_credited_after_a_look_at_the_figures():
    charges = charges_of("2", "4")
    incident = incident_of(charges)
    client = logged_in(member("fin", MONEY))
    assert begin_page(incident) in client.get(incident_page(incident)).text
    asked = client.get(begin_page(incident)).text
    assert "See what it comes to" in asked
    assert 'name="book"' not in asked
    said = {"which": "all", "percent": "50", "reason": SCRIPT, "seen": ""}
    looked = client.post(begin_page(incident), {**said, "look": "1"})
    for words in ("6.00 EUR", "3.00 EUR", "Credit 2 sessions"):
        assert words in looked.text
    assert given() == {}
    said["seen"] = hidden(looked)
    done = client.post(begin_page(incident), {**said, "book": "1"}, follow=True)
    assert "2 of 2 charges" in done.text
    assert sum(given().values()) == 3
    again = client.post(begin_page(incident), {**said, "book": "1"}, follow=True)
    assert "nothing (left) to credit" in again.text
    assert BulkCredit.objects.count() == 1
    page = client.get(incident_page(incident)).text
    for words in ("6.00 EUR", "-3.00 EUR", "Of that, 3.00 EUR was credited"):
        assert words in html.unescape(page)
    assert (
        SCRIPT
        not in done.text + page + client.get(reverse("admin:billing_bulkcredit_changelist")).text
    )


def test_figures_that_have_changed_are_looked_at_again():
    charges = charges_of("2", "4")
    incident = incident_of(charges[:1])
    client = logged_in(member("fin", MONEY))
    said = {"which": "all", "percent": "50", "reason": "r"}
    seen = hidden(client.post(begin_page(incident), {**said, "look": "1"}))
    answer = client.post(
        begin_page(incident), {**said, "percent": "100", "seen": seen, "book": "1"}, follow=True
    )
    assert "have changed" in answer.text
    assert given() == {}
    wrong = client.post(begin_page(incident), {"which": "x", "percent": "0", "book": "1"})
    assert "correct what is marked" in wrong.text


def test_a_large_one_waits_for_a_second_person_in_the_admin(settings):
    settings.BILLING = type(settings.BILLING)(credit_approval_above="5")
    incident = incident_of(charges_of("4", "4"))
    fin = logged_in(member("fin", [*MONEY, "approve_credit"]))
    said = {"which": "all", "percent": "100", "reason": "r"}
    looked = fin.post(begin_page(incident), {**said, "look": "1"})
    assert "takes a second person" in looked.text
    fin.post(begin_page(incident), {**said, "seen": hidden(looked), "book": "1"})
    (bulk,) = BulkCredit.objects.all()
    press = {"action": "approve", "_selected_action": [bulk.pk], "confirmed": "yes"}
    url = reverse("admin:billing_bulkcredit_changelist")
    assert "Nobody approves" in fin.post(url, press, follow=True).text
    assert given() == {}
    sam = logged_in(member("sam", ["view_creditrequest", "approve_credit", ALL]))
    sam.post(url, press)
    assert sum(given().values()) == 8


@pytest.mark.parametrize("lacks", ["book_credit", "credit_incident", ALL])
def test_crediting_an_incident_takes_both_permissions_and_all_tenants(lacks):
    incident = incident_of(charges_of("1"))
    client = logged_in(member("fin", [name for name in MONEY if name != lacks]))
    said = {"which": "all", "percent": "50", "reason": "r", "book": "1"}
    if lacks != ALL:
        assert begin_page(incident) not in client.get(incident_page(incident)).text
    for answer in (client.get(begin_page(incident)), client.post(begin_page(incident), said)):
        assert answer.status_code == 403
    assert not BulkCredit.objects.exists()


def test_money_is_not_shown_to_support():
    incident = incident_of(charges_of("2"))
    client = logged_in(member("support", ["view_incident", "view_streamsession", ALL]))
    page = client.get(incident_page(incident)).text
    assert "EUR" not in page
    assert "Only what reached a reader is charged." in html.unescape(page)
