"""Credits for a whole incident: exact, once, by two people where the sum is large, whatever breaks."""

from __future__ import annotations

import dataclasses
import os
import signal
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from billing.errors import CreditRefused, NotAllowed
from billing.models import AuditEntry, BillingPeriod, BulkCredit, CreditRequest, LedgerEntry
from billing.services import bulk_credits, credits, verification
from billing.services.bulk_credits import Choice, approve, begin, carry_on, preview, refuse
from billing.services.closing import checklist
from billing.services.periods import period_at
from streaming.models import Incident
from tests.billing.desk.incidents import charges_of, choice, given, incident_of, strike
from tests.billing.periods.books import charged
from tests.billing.rows import add_tenant
from tests.tasks.rows import run_together

PAT, SAM = "user:pat", "user:sam"


def start(incident: Incident, which: str = "all", percent: str = "100", **said: Any) -> BulkCredit:
    return begin(choice(incident, which, percent), **{"reason": "the outage", "actor": PAT, **said})


def allow(settings: Any, above: str) -> None:
    """Let one person book up to this amount alone."""
    settings.BILLING = dataclasses.replace(settings.BILLING, credit_approval_above=above)


def audited(start: str = "bulk_credit.") -> list[tuple[str, str]]:
    entries = AuditEntry.objects.filter(action__startswith=start).order_by("seq")
    return list(entries.values_list("action", "actor"))


@pytest.mark.django_db
class TestABulkCredit:
    def test_gives_back_part_of_what_is_left_of_each_charge(self):
        charges = charges_of("10", "0.00142", "3")
        credits.book_credit(
            charge_id=charges[2].pk, amount=Decimal(1), reason="before", actor=PAT
        )  # fmt: skip
        incident = incident_of(charges)
        charges_of("5")  # of nobody's incident
        found = preview(choice(incident, percent="12.5"))
        assert [(one.sessions, one.charges, one.credit) for one in found.totals] == [
            (3, 3, Decimal("1.5001775"))
        ]
        before = given()
        bulk = start(incident, percent="12.5", seen=found.seen)
        assert bulk.state == "booking"
        assert carry_on() == {"lines": 3, "more": 0}
        bulk.refresh_from_db()
        assert bulk.state == "done"
        assert before == {charges[2].session_id: Decimal(1)}
        booked = LedgerEntry.objects.filter(reason="the outage").order_by("amount")
        assert [(entry.charge, entry.amount) for entry in booked] == [
            (charges[0], Decimal("-1.25")),
            (charges[2], Decimal("-0.25")),
            (charges[1], Decimal("-0.0001775")),
        ]
        for entry in booked:
            assert (entry.kind, entry.actor, entry.period) == ("credit", PAT, charges[0].period)
            assert entry.session_id == entry.charge.session_id
        assert audited() == [("bulk_credit.begun", PAT)]
        assert audited("ledger.credit") == [("ledger.credit", PAT)] * 4
        assert verification.verify().ok

    def test_is_never_rounded_up(self):
        charges = charges_of("0.0000000000001")
        strange = charges_of("0.0000000000007")
        incident = incident_of([*charges, *strange])
        start(incident, percent="33.33")
        carry_on()
        assert sorted(given().values()) == [
            Decimal("0.000000000000033330"), Decimal("0.000000000000233310"),
        ]  # fmt: skip

    @pytest.mark.parametrize(("which", "sessions"), [("all", 3), ("noticed", 2), ("lost", 1)])
    def test_is_for_those_that_it_says(self, which, sessions):
        charges = charges_of("1", "1", "1")
        incident = incident_of(charges)
        strike(incident, charges[1:], noticed=True)
        strike(incident, charges[2:], noticed=True, outcome="lost")
        start(incident, which)
        carry_on()
        assert set(given()) == {charge.session_id for charge in charges[-sessions:]}

    def test_credits_a_charge_once_for_an_incident(self):
        charges = charges_of("4", "4")
        incident = incident_of(charges)
        strike(incident, charges[:1], outcome="lost")
        start(incident, "lost", "50")
        with pytest.raises(CreditRefused, match=r"nothing \(left\)"):
            start(incident, "lost", "50")  # also before it is booked
        carry_on()
        with pytest.raises(CreditRefused, match=r"nothing \(left\)"):
            start(incident, "lost", "100")
        start(incident, "all", "25")
        carry_on()
        assert given() == {charges[0].session_id: Decimal(2), charges[1].session_id: Decimal(1)}
        # Another incident of the same session is another matter.
        start(incident_of(charges[:1]), percent="50")
        carry_on()
        assert credits.credited(charges[0]) == 3

    def test_takes_nothing_that_requests_wait_for(self, settings):
        (charge,) = charges_of("10")
        allow(settings, "3")
        asked = credits.book_credit(
            charge_id=charge.pk, amount=Decimal(6), reason="asked", actor=PAT
        )
        assert isinstance(asked, CreditRequest)
        incident = incident_of([charge])
        bulk = start(incident, percent="50")
        assert bulk.lines.get().amount == 2
        # Nor does a single credit take what it waits for.
        with pytest.raises(CreditRefused, match="more than is left"):
            credits.book_credit(charge_id=charge.pk, amount=Decimal("2.01"), reason="r", actor=SAM)
        carry_on()
        assert credits.credited(charge) == 2

    def test_books_what_is_left_where_less_is_when_it_is_booked(self):
        charges = charges_of("10", "10")
        bulk = start(incident_of(charges), percent="80")
        # As a settlement does that gives back what was not delivered, without asking.
        for charge, amount in zip(charges, (5, 10), strict=True):
            LedgerEntry.objects.create(
                kind="credit", tenant=charge.tenant, period=charge.period, charge=charge,
                currency="EUR", amount=-amount, reason="denied", idempotency_key=str(charge.pk),
                actor="system", created_at=timezone.now(),
            )  # fmt: skip
        carry_on()
        lines = list(bulk.lines.order_by("pk"))
        assert sorted((line.entry is not None, bool(line.note)) for line in lines) == [
            (False, True), (True, True),
        ]  # fmt: skip
        assert [credits.credited(charge) for charge in charges] == [10, 10]

    def test_of_a_closed_period_corrects_it_in_the_current_one(self):
        now = timezone.now()
        tenant = add_tenant()
        before = period_at(tenant.pk, now).starts_at - timedelta(hours=1)
        charges = [charged("10", at=before), charged("10")]
        BillingPeriod.objects.filter(pk=charges[0].period_id).update(closed_at=now)
        start(incident_of(charges), percent="10")
        carry_on()
        found = LedgerEntry.objects.filter(kind="credit").order_by("correction")
        assert [(entry.charge, entry.correction) for entry in found] == [
            (charges[1], False), (charges[0], True),
        ]  # fmt: skip
        assert {entry.period for entry in found} == {period_at(tenant.pk, now)}

    def test_of_several_tenants_and_currencies(self):
        acme, globex = add_tenant("acme"), add_tenant("globex")
        charges = [
            *charges_of("1", "2", tenant=acme),
            *charges_of("4", tenant=globex),
            *charges_of("8", tenant=globex, currency="USD"),
        ]
        incident = incident_of(charges)
        found = preview(choice(incident, percent="50"))
        assert [(one.tenant_id, one.currency, one.credit) for one in found.totals] == [
            (acme.pk, "EUR", Decimal("1.5")), (globex.pk, "EUR", Decimal(2)),
            (globex.pk, "USD", Decimal(4)),
        ]  # fmt: skip
        assert found.sums == {"EUR": Decimal("3.5"), "USD": Decimal(4)}
        start(incident, percent="50")
        carry_on()
        assert sum(given().values()) == Decimal("7.5")

    @pytest.mark.parametrize("percent", ["0", "-1", "100.01", "0.001", "NaN", "Infinity"])
    def test_of_no_percentage_is_none(self, percent):
        incident = incident_of(charges_of("1"))
        with pytest.raises(CreditRefused):
            start(incident, percent=percent)

    def test_needs_a_reason_an_incident_and_the_figures_that_were_seen(self):
        charges = charges_of("1", "2")
        incident = incident_of(charges[:1])
        with pytest.raises(CreditRefused, match="reason"):
            start(incident, reason=" ")
        with pytest.raises(CreditRefused, match="no such incident"):
            begin(Choice(0, "all", Decimal(1)), reason="r", actor=PAT)
        with pytest.raises(CreditRefused, match="says nothing"):
            start(incident, "some")
        seen = preview(choice(incident)).seen
        strike(incident, charges[1:])
        with pytest.raises(CreditRefused, match="have changed"):
            start(incident, seen=seen)
        assert not BulkCredit.objects.exists()
        assert audited() == []


@pytest.mark.django_db
class TestASecondPerson:
    def test_is_needed_where_the_sum_is_large_though_each_charge_is_small(self, settings):
        allow(settings, "10")
        charges = charges_of(*["1"] * 11)
        bulk = start(incident_of(charges))
        assert bulk.state == "waiting"
        assert carry_on() == {"lines": 0, "more": 0}
        assert given() == {}
        with pytest.raises(NotAllowed, match="second person"):
            approve(bulk.pk, actor="command:pat")
        with pytest.raises(NotAllowed, match="Only people"):
            approve(bulk.pk, actor="system")
        approve(bulk.pk, actor=SAM)
        carry_on()
        assert len(given()) == 11
        assert {entry.actor for entry in LedgerEntry.objects.filter(kind="credit")} == {PAT}
        assert audited() == [("bulk_credit.requested", PAT), ("bulk_credit.approved", SAM)]
        # What two have agreed to counts for neither alone.
        assert isinstance(
            credits.book_credit(
                charge_id=charged("9").pk, amount=Decimal(9), reason="r", actor=PAT
            ),
            LedgerEntry,
        )
        for decide in (approve, refuse):
            with pytest.raises(CreditRefused, match="does not wait"):
                decide(bulk.pk, actor=SAM)

    def test_may_refuse_it_and_then_it_can_be_asked_for_anew(self, settings):
        allow(settings, "1")
        incident = incident_of(charges_of("2"))
        bulk = start(incident)
        refuse(bulk.pk, actor=SAM)
        assert carry_on()["lines"] == 0
        assert given() == {}
        start(incident, percent="50")
        carry_on()
        assert list(given().values()) == [1]

    def test_is_not_got_round_by_several_bulks_of_one_incident(self, settings):
        allow(settings, "10")
        tenants = [add_tenant(f"tenant-{number}") for number in range(3)]
        charges = [charged("6", tenant) for tenant in tenants]
        incident = incident_of(charges)
        strike(incident, charges[:1], noticed=True, outcome="lost")
        strike(incident, charges[1:2], noticed=True)
        first = start(incident, "lost")
        second = start(incident, "noticed")
        assert (first.state, second.state) == ("booking", "waiting")
        assert start(incident, "all", actor=SAM).state == "booking"  # another person's own

    def test_is_not_got_round_by_credits_before_or_after(self, settings):
        allow(settings, "10")
        charges = charges_of("6", "6", "6")
        credits.book_credit(charge_id=charges[0].pk, amount=Decimal(6), reason="r", actor=PAT)
        bulk = start(incident_of(charges[1:2]))
        assert bulk.state == "waiting"
        refuse(bulk.pk, actor=PAT)
        other = start(incident_of(charges[1:2]), actor=SAM)
        assert other.state == "booking"
        # What is still to be booked counts already.
        asked = credits.book_credit(
            charge_id=charges[2].pk, amount=Decimal(6), reason="r", actor=SAM
        )
        assert isinstance(asked, CreditRequest)
        carry_on()
        assert given() == {charges[0].session_id: 6, charges[1].session_id: 6}

    def test_keeps_the_month_open_until_it_is_decided(self, settings):
        allow(settings, "1")
        (charge,) = charges_of("2")
        bulk = start(incident_of([charge]))

        def open_requests() -> int:
            (item,) = [
                item for item in checklist(charge.period).items if item.name == "credit_requests"
            ]
            return item.count

        assert open_requests() == 1
        approve(bulk.pk, actor=SAM)
        assert open_requests() == 1
        carry_on()
        assert open_requests() == 0


@pytest.mark.django_db(transaction=True)
class TestSeveralAtOnce:
    def test_two_who_begin_the_same_begin_it_once(self):
        incident = incident_of(charges_of("1", "2", "3"))

        def try_it() -> str:
            try:
                return start(incident).state
            except CreditRefused:
                return "refused"

        assert sorted(run_together(try_it)) == ["booking", "refused", "refused"]
        run_together(carry_on)
        assert sorted(given().values()) == [1, 2, 3]
        assert audited() == [("bulk_credit.begun", PAT)]

    def test_of_large_ones_by_one_person_only_what_fits_goes_without_a_second(self, settings):
        allow(settings, "10")
        incidents = iter([incident_of(charges_of("6")) for _ in range(3)])
        states = run_together(lambda: start(next(incidents)).state)
        assert sorted(states) == ["booking", "waiting", "waiting"]

    def test_several_that_book_it_book_each_line_once(self, monkeypatch):
        monkeypatch.setattr(bulk_credits, "BATCH", 2)
        charges = [
            *charges_of(*["1"] * 5, tenant=add_tenant("acme")),
            *charges_of(*["1"] * 4, tenant=add_tenant("globex")),
        ]
        start(incident_of(charges))
        results = run_together(carry_on)
        assert sum(result["lines"] for result in results) == 9
        assert len(given()) == LedgerEntry.objects.filter(kind="credit").count() == 9
        assert BulkCredit.objects.get().state == "done"
        assert verification.verify().ok

    def test_what_was_broken_off_is_gone_on_with(self, monkeypatch):
        """The worker that books is killed between two batches, and in the midst of one."""
        monkeypatch.setattr(bulk_credits, "BATCH", 2)
        start(incident_of(charges_of(*["1"] * 7)))
        for die_in in (1, 3):
            _killed_in_batch(die_in)
        assert 0 < len(given()) < 7
        carry_on()
        assert len(given()) == LedgerEntry.objects.filter(kind="credit").count() == 7
        assert len(audited("ledger.credit")) == 7
        assert verification.verify().ok


def _killed_in_batch(number: int) -> None:
    """Book in a process of its own, which dies while it writes its ``number``-th batch."""
    from django.db import connection

    from billing.services import ledger

    connection.close()
    child = os.fork()
    if child == 0:
        batches = 0
        post = ledger.post_many

        def post_and_die(entries: Any) -> None:
            nonlocal batches
            batches += 1
            post(entries)
            if batches == number:
                os.kill(os.getpid(), signal.SIGKILL)

        ledger.post_many = post_and_die
        carry_on(60)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
