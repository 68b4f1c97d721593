"""What finance does on a terminal."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing.models import AuditEntry, BillingPeriod, LedgerEntry, PricePlan
from billing.services.periods import period_at, period_named
from streaming.models import OutboxMessage, SessionFence
from tests.billing.periods.books import charged, guards_off, settle
from tests.billing.rows import add_plan, add_tenant, ended_session

pytestmark = pytest.mark.django_db


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def failing(command: str, *arguments: str) -> tuple[str, str]:
    """What it wrote, and why it ended with 1."""
    out = StringIO()
    with pytest.raises(CommandError) as failed:
        call_command(command, *arguments, stdout=out)
    assert failed.value.returncode == 1
    return out.getvalue(), str(failed.value)


@pytest.fixture
def last_month() -> BillingPeriod:
    tenant = add_tenant(created_at=timezone.now() - timedelta(days=100))
    now = period_at(tenant.pk, timezone.now())
    return period_at(tenant.pk, now.starts_at - timedelta(days=3))


class TestPrice:
    def test_set_listed_ended_and_withdrawn(self):
        add_tenant()
        run("price", "set", "--tenant", "acme", "--model", "m", "--input", "1.5", "--output", "6")
        plan = PricePlan.objects.get()
        assert (plan.input_per_million, plan.cached_input_per_million) == (
            Decimal("1.5"), Decimal("1.5"),
        )  # fmt: skip
        assert plan.created_by.startswith("command:")
        said = run(
            "price", "set", "--tenant", "acme", "--model", "m", "--input", "2", "--cached-input", "1",
            "--output", "7", "--from", "2999-01-01", "--policy", "interrupt_compensated",
            "--currency", "USD", "--cost", "0.5", "--coefficient", "1.1", "--note", "contract 7",
        )  # fmt: skip
        number = re.findall(r"Plan (\d+)", said)[0]
        listed = run("price", "list", "--tenant", "acme", "--model", "m")
        assert re.search(r"acme +m .* 2999-01-01 00:00 +EUR +1.5 +1.5 +6 ", listed)
        assert "contract 7" in listed
        assert "withdrawn" in run("price", "withdraw", number)
        assert "ends at" in run("price", "end", str(plan.pk))
        assert run("price", "list") == "There are no prices.\n"
        assert "acme" in run("price", "list", "--all")

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--input", "-1", "--output", "1"], "input_per_million"),
            (["--input", "1", "--output", "1", "--tenant", "nobody"], "no tenant"),
            (["--input", "x", "--output", "1"], "invalid amount value"),
            (["--input", "1_0", "--output", "1"], "invalid amount value"),
            (
                [
                    "--input",
                    "1",
                    "--output",
                    "1",
                    "--policy",
                    "interrupt_compensated",
                    "--note",
                    " ",
                ],
                "name the contract",
            ),
            (["--input", "1", "--output", "1", "--from", "soon"], "invalid moment value"),
        ],
    )
    def test_that_is_none(self, arguments, why):
        with pytest.raises(CommandError, match=why):
            run("price", "set", *arguments)


class TestCredit:
    def test_booked_asked_for_and_refused(self):
        charge = charged("300")
        said = run("credit", "book", str(charge.pk), "2.5", "--reason", "slow", "--key", "t-1")
        assert "-2.5 EUR in" in said
        run("credit", "book", str(charge.pk), "2.5", "--reason", "slow", "--key", "t-1")
        assert LedgerEntry.objects.filter(kind="credit").count() == 1
        said = run("credit", "book", str(charge.pk), "150", "--reason", "outage")
        assert "waits for a second person" in said
        number = re.findall(r"Request (\d+)", said)[0]
        assert re.search(
            rf"{number} +acme +-150 +EUR +command:\S+ .*outage", run("credit", "requests")
        )
        _, why = failing("credit", "approve", number)
        assert "second person" in why
        assert "refused" in run("credit", "refuse", number)
        assert run("credit", "requests") == "No request waits.\n"
        _, why = failing("credit", "book", str(charge.pk), "299", "--reason", "r")
        assert "more than is left" in why

    def test_an_adjustment(self):
        add_tenant()
        assert "-7 USD in" in run(
            "credit", "adjust", "acme", "-7", "--reason", "goodwill", "--currency", "USD"
        )
        for typed, booked in (("-1e1", "-10"), ("-.5", "-0.5"), ("+2.50", "2.5")):
            assert f"{booked} EUR in" in run("credit", "adjust", "acme", typed, "--reason", "r")

    @pytest.mark.parametrize("typed", ["1_0", "-1_0", "NaN", "-Infinity", "١٠", "1e999", ""])
    def test_what_is_no_amount(self, typed):
        add_tenant()
        with pytest.raises(
            CommandError, match=r"invalid amount value|expected one argument|required"
        ):
            run("credit", "adjust", "acme", typed, "--reason", "r")
        with pytest.raises(CommandError, match="is no number"):
            run("account", "set", "acme", f"--spend-limit={typed}")
        with pytest.raises(CommandError, match="is no number"):
            run("account", "set", "acme", f"--token-limit={typed}")
        assert not LedgerEntry.objects.exists()


class TestReconciling:
    def test_a_month_that_agrees(self, last_month):
        add_plan()
        settle(ended_session(at=last_month.starts_at))
        purged = ended_session(at=last_month.starts_at)
        settle(purged)
        purged.purge()
        said = run("reconcile_billing", "--period", last_month.name)
        assert "recounted from the log: 1 sessions; from the digest of a purged log: 1" in said
        assert "ledger = settlements = log" in said

    def test_a_month_that_does_not(self, last_month):
        add_plan()
        story = ended_session(at=last_month.starts_at)
        settle(story)
        SessionFence.objects.update(acked_seq=8)
        said, why = failing("reconcile_billing", "--period", last_month.name, "--tenant", "acme")
        assert why == "2 differences."
        assert f"session {story.session.pk} delivered: 10 instead of 8" in said
        said, _ = failing("reconcile_billing", "--period", last_month.name, "--json")
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line["difference"]["kind"] for line in lines[:-1]] == [
            "delivered_differs", "billed_differs",
        ]  # fmt: skip
        report: dict[str, Any] = lines[-1]["report"]
        assert (report["tenant"], report["lines"]) == ("acme", 1)
        assert report["totals"]["EUR"]["charges"] == "0.00005"

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--period", "2026-13"], "no month"),
            (["--period", "2026-01", "--tenant", "x"], "no tenant"),
        ],
    )
    def test_what_there_is_not(self, arguments, why):
        assert why in failing("reconcile_billing", *arguments)[1]


@pytest.mark.parametrize("command", ["reconcile_billing", "close_period"])
def test_a_month_without_anything_is_none_and_is_not_made(command):
    add_tenant(created_at=timezone.now() - timedelta(days=100))
    for month in ("2030-01", "2020-01", f"{timezone.now():%Y-%m}"):
        for arguments, whom in (([], "any tenant"), (["--tenant", "acme"], "acme")):
            said = failing(command, "--period", month, *arguments)
            assert said == ("", f"Nothing was booked for {whom} in {month}.")
    assert not BillingPeriod.objects.exists()


def test_a_month_that_billing_has_not_heard_of_is_reconciled_unwritten_and_closed():
    before = timezone.now() - timedelta(days=40)
    ended_session(at=before)
    OutboxMessage.objects.update(handled_at=before)
    assert "1 unsettled" in failing("reconcile_billing", "--period", f"{before:%Y-%m}")[0]
    assert not BillingPeriod.objects.exists()
    run("close_period", "--period", f"{before:%Y-%m}", "--despite", "unsettled")
    assert BillingPeriod.objects.get().closed_at is not None


class TestClosing:
    def test_of_a_month_that_was_reopened_goes_on_with_the_others(self, last_month):
        name = last_month.name
        run("close_period", "--period", name)
        with guards_off("billing_billingperiod"):
            BillingPeriod.objects.update(closed_at=None)
        other = period_named(add_tenant("other").pk, name)
        said, why = failing("close_period", "--period", name, "--despite", "differences")
        assert "stays open: acme: " in said
        assert "was closed before" in said
        assert why == "1 of 2 periods stay open."
        other.refresh_from_db()
        assert other.closed_at is not None

    def test_shows_what_is_open_then_closes_despite_it(self, last_month):
        settle(ended_session(at=last_month.starts_at))
        said, why = failing("close_period", "--period", last_month.name)
        assert re.search(r"OPEN +unpriced +1 ", said)
        assert re.search(r"ok +differences +- ", said)
        assert why == "1 of 1 periods stay open."
        said = run("close_period", "--period", last_month.name, "--despite", "unpriced")
        assert re.search(r"despite +unpriced +1 ", said)
        assert "0 EUR in 1 lines (exactly 0)" in said
        last_month.refresh_from_db()
        assert last_month.closed_by.startswith("command:")
        assert "was closed at" in run("close_period", "--period", last_month.name)
        assert AuditEntry.objects.filter(action="period.closed").count() == 1

    def test_of_all_tenants_those_that_are_ready(self, last_month):
        add_plan()
        other = add_tenant("other", created_at=timezone.now() - timedelta(days=100))
        settle(ended_session(at=last_month.starts_at))
        ended_session(tenant=other, at=last_month.starts_at)
        said, why = failing("close_period", "--period", last_month.name)
        assert why == "1 of 2 periods stay open."
        assert re.search(r"OPEN +unsettled +1 ", said)
        last_month.refresh_from_db()
        assert last_month.closed_at is not None

    def test_lists_the_differences(self, last_month):
        add_plan()
        settle(ended_session(at=last_month.starts_at))
        SessionFence.objects.update(acked_seq=8)
        said, _ = failing("close_period", "--period", last_month.name)
        assert "billed tokens: 10 instead of 8" in said
