"""Credits: never more than the charge, large ones by two people, each booked once."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from billing.errors import CreditRefused, NotAllowed
from billing.models import AuditEntry, BillingPeriod, CreditRequest, LedgerEntry
from billing.services.credits import (
    approve,
    book_adjustment,
    book_credit,
    credited,
    refuse,
    waiting,
)
from billing.services.periods import period_at
from tests.billing.periods.books import charged
from tests.billing.rows import add_tenant
from tests.tasks.rows import run_together

PAT, SAM = "user:pat", "user:sam"


def credit(charge: LedgerEntry, amount: str, **arguments: Any) -> LedgerEntry | CreditRequest:
    values = {"reason": "too slow", "actor": PAT, **arguments}
    return book_credit(charge_id=charge.pk, amount=Decimal(amount), **values)


def adjust(amount: str, **arguments: Any) -> LedgerEntry | CreditRequest:
    values = {"tenant_id": add_tenant().pk, "currency": "EUR", "reason": "set-up", "actor": PAT}
    return book_adjustment(amount=Decimal(amount), **{**values, **arguments})


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("seq").values_list("action", flat=True))


@pytest.mark.django_db
class TestACredit:
    def test_takes_back_part_of_its_charge(self):
        charge = charged("10")
        entry = credit(charge, "2.5")
        assert isinstance(entry, LedgerEntry)
        assert (entry.kind, entry.amount, entry.charge) == ("credit", Decimal("-2.5"), charge)
        assert (entry.period, entry.correction) == (charge.period, False)
        assert (entry.session_id, entry.model) == (charge.session_id, charge.model)
        assert credited(charge) == Decimal("2.5")
        assert actions()[-1] == "ledger.credit"

    def test_is_never_more_than_what_is_left_of_it(self):
        charge = charged("10")
        credit(charge, "9.999999999999999998")
        with pytest.raises(CreditRefused, match="is more than is left"):
            credit(charge, "0.000000000000000003")
        credit(charge, "0.000000000000000002")
        assert credited(charge) == 10

    def test_of_a_closed_period_corrects_it_in_the_current_one(self):
        now = timezone.now()
        tenant = add_tenant()
        before = period_at(tenant.pk, now).starts_at - timedelta(hours=1)
        charge = charged("10", at=before)
        entry = credit(charge, "1")
        assert (entry.period, entry.correction) == (charge.period, False)
        BillingPeriod.objects.filter(pk=charge.period_id).update(closed_at=now)
        entry = credit(charge, "1")
        assert (entry.period, entry.correction) == (period_at(tenant.pk, now), True)
        with pytest.raises(CreditRefused, match="more than is left"):
            credit(charge, "8.01")

    @pytest.mark.parametrize(
        ("amount", "reason"),
        [
            ("0", "r"),
            ("-1", "r"),
            ("0.0000000000000000001", "r"),
            ("NaN", "r"),
            ("Infinity", "r"),
            ("1", " "),
            ("1", "r" * 301),
        ],
    )
    def test_that_is_none(self, amount, reason):
        charge = charged("10")
        with pytest.raises(CreditRefused):
            credit(charge, amount, reason=reason)
        assert LedgerEntry.objects.count() == 1

    def test_of_something_that_is_no_charge(self):
        entry = credit(charged("10"), "1")
        with pytest.raises(CreditRefused, match="no charge"):
            credit(entry, "1")

    def test_in_floats_is_refused(self):
        with pytest.raises(TypeError):
            book_credit(charge_id=charged("1").pk, amount=0.5, reason="r", actor=PAT)

    def test_with_the_same_key_is_booked_once(self):
        charge = charged("10")
        entry = credit(charge, "1", key="ticket-7")
        assert credit(charge, "1", key="ticket-7") == entry
        with pytest.raises(CreditRefused, match="for another amount"):
            credit(charge, "2", key="ticket-7")
        credit(charged("10"), "2", key="ticket-7")
        with pytest.raises(CreditRefused, match="64 characters"):
            credit(charge, "1", key="k" * 65)


@pytest.mark.django_db
class TestALargeOne:
    def test_is_booked_by_two_people(self):
        charge = charged("250")
        request = credit(charge, "100.01")
        assert isinstance(request, CreditRequest)
        assert credited(charge) == 0
        assert list(waiting(charge.tenant_id)) == [request]
        with pytest.raises(NotAllowed, match="second person"):
            approve(request.pk, actor=PAT)
        with pytest.raises(NotAllowed, match="second person"):
            approve(request.pk, actor="command:pat")
        with pytest.raises(NotAllowed, match="Only people"):
            approve(request.pk, actor="system")
        entry = approve(request.pk, actor=SAM)
        assert (entry.amount, entry.actor, entry.reason) == (Decimal("-100.01"), PAT, "too slow")
        assert approve(request.pk, actor=SAM) == entry
        assert not waiting().exists()
        request.refresh_from_db()
        assert (request.decision, request.decided_by, request.entry) == ("approved", SAM, entry)
        assert actions()[-3:] == ["credit.requested", "ledger.credit", "credit.approved"]
        data = json.loads(AuditEntry.objects.latest("seq").data)
        assert (data["requested_by"], data["entry"]) == (PAT, str(entry.pk))

    def test_that_waits_is_counted(self):
        charge = charged("150")
        credit(charge, "120")
        with pytest.raises(CreditRefused, match="120 are asked for"):
            credit(charge, "31")
        credit(charge, "30")

    def test_that_was_refused_is_not(self):
        charge = charged("150")
        request = credit(charge, "120")
        assert refuse(request.pk, actor=PAT).decision == "refused"
        refuse(request.pk, actor=PAT)
        with pytest.raises(CreditRefused, match="refused before"):
            approve(request.pk, actor=SAM)
        assert isinstance(credit(charge, "130"), CreditRequest)
        assert actions()[-2:] == ["credit.refused", "credit.requested"]

    def test_with_the_same_key_is_asked_for_once(self):
        charge = charged("250")
        request = credit(charge, "101", key="k")
        assert credit(charge, "101", key="k") == request
        entry = approve(request.pk, actor=SAM)
        assert credit(charge, "101", key="k") == entry

    def test_in_small_pieces_is_one(self):
        charges = [charged("60"), charged("60")]
        assert isinstance(credit(charges[0], "60"), LedgerEntry)
        assert isinstance(credit(charges[1], "40.01"), CreditRequest)
        assert isinstance(credit(charges[1], "19.99", actor=SAM), LedgerEntry)

    def test_in_pieces_from_the_admin_and_a_terminal_is_one(self):
        charges = [charged("60"), charged("60")]
        assert isinstance(credit(charges[0], "60", actor="command:pat"), LedgerEntry)
        assert isinstance(credit(charges[1], "40.01"), CreditRequest)
        assert isinstance(adjust("-40.01"), CreditRequest)

    def test_is_decided_on_once_by_a_person_wherever_they_are(self):
        request = credit(charged("150"), "120")
        entry = approve(request.pk, actor=SAM)
        assert approve(request.pk, actor="command:sam") == entry

    def test_unknown(self):
        with pytest.raises(CreditRefused, match="no request"):
            approve(0, actor=SAM)

    def test_finds_its_charge_credited_otherwise(self):
        charge = charged("150")
        request = credit(charge, "120")
        LedgerEntry.objects.create(
            kind="credit", tenant=charge.tenant, period=charge.period, charge=charge,
            currency="EUR", amount=Decimal(-40), reason="not delivered", actor="system",
            idempotency_key="settlement:x:2", created_at=timezone.now(),
        )  # fmt: skip
        with pytest.raises(CreditRefused, match="more than is left"):
            approve(request.pk, actor=SAM)
        assert waiting().count() == 1


@pytest.mark.django_db
class TestAnAdjustment:
    def test_is_in_the_current_period(self):
        entry = adjust("-12.5")
        assert isinstance(entry, LedgerEntry)
        assert (entry.kind, entry.amount, entry.charge) == ("adjustment", Decimal("-12.5"), None)
        assert entry.period == period_at(entry.tenant_id, timezone.now())

    def test_that_is_large_takes_two(self):
        for amount in ("100.01", "-100.01"):
            request = adjust(amount)
            assert isinstance(request, CreditRequest)
            assert approve(request.pk, actor=SAM).amount == Decimal(amount)
        assert isinstance(adjust("100"), LedgerEntry)
        assert isinstance(adjust("0.01"), CreditRequest)
        assert isinstance(adjust("100", currency="JPY"), LedgerEntry)

    @pytest.mark.parametrize(
        "wrong", [{"amount": "0"}, {"currency": "eur"}, {"currency": "EUX"}, {"reason": ""}]
    )
    def test_that_is_none(self, wrong):
        with pytest.raises(CreditRefused):
            adjust(**{"amount": "1", **wrong})

    def test_with_the_same_key_is_booked_once(self):
        assert adjust("5", key="k") == adjust("5", key="k")
        with pytest.raises(CreditRefused):
            adjust("5", key="k", currency="USD")


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_credits_are_never_more_than_the_charge(self):
        charge = charged("10")
        actors = iter(f"user:{n}" for n in range(6))

        def attempt() -> bool:
            try:
                credit(charge, "3", actor=next(actors))
            except CreditRefused:
                return False
            return True

        assert sorted(run_together(attempt, 6)) == [False] * 3 + [True] * 3
        assert credited(charge) == 9

    def test_one_key_books_once(self):
        charge = charged("10")
        assert (
            len({entry.pk for entry in run_together(lambda: credit(charge, "3", key="k"), 4)}) == 1
        )
        assert len({entry.pk for entry in run_together(lambda: adjust("3", key="k"), 4)}) == 1

    def test_a_request_is_decided_once(self):
        request = credit(charged("500"), "200")
        actors = iter(["user:a", "user:b", "user:c", "user:d"])

        def decide() -> bool:
            actor = next(actors)
            try:
                if actor in ("user:a", "user:b"):
                    approve(request.pk, actor=actor)
                else:
                    refuse(request.pk, actor=actor)
            except CreditRefused:
                return False
            return True

        assert sum(run_together(decide, 4)) == 1
        assert LedgerEntry.objects.filter(kind="credit").count() <= 1

    def test_small_pieces_are_still_one(self):
        charges = iter([charged("60") for _ in range(4)])
        done = run_together(lambda: credit(next(charges), "40"), 4)
        assert sum(isinstance(one, LedgerEntry) for one in done) == 2
