"""Closing a month: the checklist, what is frozen, and that nothing slips in beside it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import locks
from billing.conf import conf
from billing.core import money
from billing.core.currencies import minor_digits
from billing.errors import BillingError, PeriodNotReady
from billing.models import (
    AuditEntry,
    BillingAccount,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    Settlement,
    UsageSink,
)
from billing.services import closing, ledger
from billing.services.closing import checklist, close_period
from billing.services.credits import approve, book_credit
from billing.services.periods import open_period, period_at
from billing.services.reconciliation import reconcile
from billing.services.settlement import settle_due, settle_session
from billing.services.verification import verify
from streaming.core.ids import uuid7
from streaming.models import Attempt, OutboxMessage, SessionFence, Tenant
from streaming.services.incidents import open_incident
from tests.billing.periods.books import charged, settle
from tests.billing.rows import Story, add_plan, add_tenant, ended_session
from tests.tasks.rows import run_together

PAT = "user:pat"
EVERYTHING = frozenset(closing.ITEMS.keys() - {closing.NOT_OVER})


def last_month(tenant: Tenant | None = None) -> BillingPeriod:
    tenant = tenant or add_tenant()
    return period_at(tenant.pk, period_at(tenant.pk, timezone.now()).starts_at - timedelta(days=3))


def then(period: BillingPeriod) -> datetime:
    return period.starts_at + timedelta(days=5)


def post(period: BillingPeriod, amount: str | Decimal, currency: str = "EUR") -> LedgerEntry:
    with transaction.atomic():
        return ledger.post(
            kind=LedgerEntry.Kind.ADJUSTMENT, period=period, currency=currency,
            amount=Decimal(amount), idempotency_key=f"test:{uuid7()}", reason="r", actor=PAT,
        )  # fmt: skip


def is_open(period: BillingPeriod) -> dict[str, int]:
    return {item.name: item.count for item in checklist(period).open}


@pytest.mark.django_db
class TestTheChecklist:
    def test_of_a_month_in_order(self):
        add_plan()
        period = last_month()
        settle(ended_session(at=then(period)))
        assert is_open(period) == {}

    def test_of_a_month_that_goes_on(self):
        period = period_at(add_tenant().pk, timezone.now())
        assert is_open(period) == {"not_over": 1}
        with pytest.raises(PeriodNotReady, match="not_over"):
            close_period(period.pk, actor=PAT, despite=EVERYTHING)

    def test_what_is_not_settled(self):
        add_plan()
        period = last_month()
        ended_session(at=then(period))
        ended_session(tenant=add_tenant("other"), at=then(period))
        ended_session()  # of this month
        assert is_open(period) == {"unsettled": 1}
        OutboxMessage.objects.update(handled_at=timezone.now())
        assert is_open(period) == {"unsettled": 1}

    def test_what_differs(self):
        add_plan()
        period = last_month()
        story = ended_session(at=then(period))
        settle(story)
        Attempt.objects.update(engine_completion_tokens=11)
        SessionFence.objects.update(acked_seq=3)
        assert is_open(period) == {"differences": 2, "engine_usage": 1}

    def test_what_had_no_price(self):
        period = last_month()
        settle(ended_session(at=then(period)))
        assert is_open(period) == {"unpriced": 1}

    def test_what_is_undecided(self):
        period = last_month()
        charge = charged("500", at=then(period))
        request = book_credit(charge_id=charge.pk, amount=Decimal(200), reason="r", actor=PAT)
        assert is_open(period) == {"credit_requests": 1}
        approve(request.pk, actor="user:sam")
        assert is_open(period) == {}

    def test_what_is_wrong_with_billing_or_the_tenant(self):
        add_plan()
        period = last_month()
        story = ended_session(at=then(period))
        settle(story)
        other = ended_session(tenant=add_tenant("other"), at=then(period))
        open_incident("settlement_failed", "theirs", session_id=other.session.pk)
        assert is_open(period) == {}
        open_incident("settlement_failed", "ours", session_id=story.session.pk)
        open_incident("audit_broken", "audit log")
        open_incident("sweeper_silent", "sweeper")
        assert is_open(period) == {"incidents": 3}

    def test_what_is_wrong_with_others_or_with_machines(self):
        period = last_month()
        open_incident("kv_not_reclaimed", "a node that was removed")
        open_incident("usage_events_failed", "a sink that was removed")
        for name, tenant in (("theirs", add_tenant("other")), ("everybody's", None)):
            UsageSink.objects.create(name=name, url="https://sink.example", tenant=tenant)
            open_incident("usage_events_failed", name)
        assert is_open(period) == {}

    def test_that_its_own_sinks_were_told(self):
        period = last_month()
        UsageSink.objects.create(name="ours", url="https://sink.example", tenant=period.tenant)
        open_incident("usage_events_failed", "ours")
        assert is_open(period) == {"usage_events": 1}
        close_period(period.pk, actor=PAT, despite=frozenset({"usage_events"}))

    def test_that_the_months_before_are_closed(self):
        period = last_month()
        before = period_at(period.tenant_id, period.starts_at - timedelta(days=1))
        assert is_open(period) == {"earlier_periods": 1}
        close_period(before.pk, actor=PAT)
        assert is_open(period) == {}


@pytest.mark.django_db
class TestClosing:
    def test_rounds_once_and_freezes(self):
        period = last_month()
        for amount, currency in (
            ("0.0049", "EUR"), ("0.0049", "EUR"), ("0.0049", "EUR"),
            ("0.5", "JPY"), ("2", "JPY"), ("0.0005", "KWD"), ("-0.001", "KWD"),
        ):  # fmt: skip
            post(period, amount, currency)
        closed = close_period(period.pk, actor=PAT)
        assert (closed.closed_by, closed.closed_at is not None) == (PAT, True)
        totals = {
            total.currency: (total.lines, total.exact, total.rounded, total.rule)
            for total in PeriodTotal.objects.all()
        }
        assert totals == {
            "EUR": (3, Decimal("0.0147"), Decimal("0.01"), "half_even"),
            "JPY": (2, Decimal("2.5"), Decimal(2), "half_even"),
            "KWD": (2, Decimal("-0.0005"), Decimal(0), "half_even"),
        }
        entry = AuditEntry.objects.latest("seq")
        assert (entry.action, entry.subject) == ("period.closed", f"period:{period.pk}")
        assert json.loads(entry.data)["lines"] == 7
        assert AuditEntry.objects.filter(action="period.total").count() == 3
        assert verify().ok

    def test_freezes_whose_month_it_was_and_who_billed_it(self):
        period = last_month()
        BillingAccount.objects.filter(tenant=period.tenant).update(legal_name="Acme GmbH")
        close_period(period.pk, actor="user:pat")
        BillingAccount.objects.filter(tenant=period.tenant).update(legal_name="Acme AG")
        period.refresh_from_db()
        assert (period.account_name, period.issuer) == ("Acme GmbH", conf().invoice_issuer)

    def test_twice_is_once(self):
        period = last_month()
        first = close_period(period.pk, actor=PAT)
        again = close_period(period.pk, actor="user:sam")
        assert (again.closed_at, again.closed_by) == (first.closed_at, PAT)
        assert AuditEntry.objects.filter(action="period.closed").count() == 1

    def test_waits_for_what_is_open(self):
        period = last_month()
        settle(ended_session(at=then(period)))
        with pytest.raises(PeriodNotReady, match="unpriced") as refused:
            close_period(period.pk, actor=PAT)
        assert refused.value.checklist["items"]["unpriced"]["open"] == 1
        period.refresh_from_db()
        assert period.closed_at is None
        assert not PeriodTotal.objects.exists()

    def test_despite_something_that_is_recorded(self):
        period = last_month()
        settle(ended_session(at=then(period)))
        with pytest.raises(PeriodNotReady):
            close_period(period.pk, actor=PAT, despite=frozenset({"differences"}))
        closed = close_period(period.pk, actor=PAT, despite=frozenset({"unpriced"}))
        closed.refresh_from_db()
        assert closed.checklist["despite"] == ["unpriced"]
        assert closed.checklist["items"]["unpriced"]["open"] == 1
        data = json.loads(AuditEntry.objects.latest("seq").data)
        assert (data["despite"], data["open"]) == (["unpriced"], {"unpriced": 1})

    @pytest.mark.parametrize("name", ["not_over", "everything"])
    def test_despite_what_nothing_is_called(self, name):
        with pytest.raises(BillingError, match="Nothing that can be put up with"):
            close_period(last_month().pk, actor=PAT, despite=frozenset({name}))

    def test_keeps_everything_out(self):
        add_plan()
        period = last_month()
        story = ended_session(at=then(period), delivered=4)
        charge = settle(story)
        close_period(period.pk, actor=PAT)
        with pytest.raises(IntegrityError, match="is closed"):
            post(period, "1")
        row = Settlement.objects.values().get()
        with pytest.raises(IntegrityError, match="is closed"), transaction.atomic():
            Settlement.objects.create(**{**row, "id": None, "n": 2})
        for change in ({"closed_at": None}, {"checklist": {}}):
            with pytest.raises(DatabaseError, match="closed"), transaction.atomic():
                BillingPeriod.objects.filter(pk=period.pk).update(**change)
        with pytest.raises(DatabaseError, match="stays where it is"), transaction.atomic():
            BillingPeriod.objects.filter(pk=last_month(add_tenant("o")).pk).update(name="2020-01")
        # What is learned later goes into the current month.
        story.at = None
        story.deliver(9, announce=True)
        late = settle(story)
        credit = book_credit(charge_id=charge.pk, amount=charge.amount, reason="r", actor=PAT)
        current = period_at(period.tenant_id, timezone.now())
        assert (late.period, credit.period) == (current, current)
        assert (credit.correction, late.amount > 0) == (True, True)
        period.refresh_from_db()
        assert reconcile(period).is_proven
        assert reconcile(current).is_proven

    def test_a_session_that_was_forgotten_is_charged_in_the_next_one(self):
        add_plan()
        period = last_month()
        story = ended_session(at=then(period))
        close_period(period.pk, actor=PAT, despite=frozenset({"unsettled"}))
        entry = settle(story)
        assert (entry.period, entry.correction) == (
            period_at(period.tenant_id, timezone.now()), True,
        )  # fmt: skip
        assert not PeriodTotal.objects.exists()

    def test_looks_again_at_lines_that_came_meanwhile(self, monkeypatch):
        period = last_month()
        looked: list[int] = []

        def look(period: BillingPeriod) -> closing.Checklist:
            found = checklist(period)
            looked.append(found.report.lines)
            if len(looked) < 3:
                post(period, "1")
            return found

        monkeypatch.setattr(closing, "checklist", look)
        close_period(period.pk, actor=PAT)
        assert looked == [0, 1, 2]
        assert PeriodTotal.objects.get().exact == 2

    def test_gives_up_where_lines_never_end(self, monkeypatch):
        period = last_month()

        def look(period: BillingPeriod) -> closing.Checklist:
            found = checklist(period)
            post(period, "1")
            return found

        monkeypatch.setattr(closing, "checklist", look)
        with pytest.raises(PeriodNotReady, match="still being added"):
            close_period(period.pk, actor=PAT)


CURRENCIES = ("EUR", "USD", "JPY", "KWD", "CLF")
amounts = st.decimals(
    min_value=Decimal("-1e9"), max_value=Decimal("1e9"), places=money.AMOUNT_PLACES
) | st.sampled_from([Decimal(x) for x in ("0.005", "0.015", "0.5", "1.5", "-0.005", "0.0005", "0")])


@pytest.mark.django_db
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(CURRENCIES), amounts), max_size=12))
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_totals_by_line_by_tenant_and_by_period_agree(lines):
    tenants = [add_tenant(f"t-{uuid7()}") for _ in range(3)]
    periods = [last_month(tenant) for tenant in tenants]
    for number, currency, amount in lines:
        post(periods[number], amount, currency)
    for period in periods:
        close_period(period.pk, actor=PAT)
    for currency in CURRENCIES:
        by_line = money.total(amount for _, unit, amount in lines if unit == currency)
        totals = PeriodTotal.objects.filter(period__in=periods, currency=currency)
        assert money.total(total.exact for total in totals) == by_line
        unit = Decimal(1).scaleb(-minor_digits(currency))
        for total in totals:
            own = [
                amount
                for number, other, amount in lines
                if (periods[number].pk, other) == (total.period_id, currency)
            ]
            assert (total.lines, total.exact) == (len(own), money.total(own))
            assert total.rounded == total.exact.quantize(unit, rounding=ROUND_HALF_EVEN)
        # Of all tenants: each is off by half a unit at most, so the whole month is by no more.
        rounded = money.total(total.rounded for total in totals)
        assert abs(rounded - by_line) <= len(totals) * unit / 2


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_settled_while_the_month_is_closed(self):
        add_plan()
        period = last_month()
        stories = [ended_session(at=then(period), delivered=6) for _ in range(24)]
        numbers = iter(range(6))
        lot = threading.Lock()

        def work() -> str:
            with lot:
                number = next(numbers)
            if number < 2:
                _close_surely(period)
                return "closed"
            for story in stories[number - 2 :: 4]:
                settle_session(story.session.pk)
            return "settled"

        assert sorted(run_together(work, 6)) == ["closed"] * 2 + ["settled"] * 4
        _is_whole(period)
        assert LedgerEntry.objects.count() == 24
        late = LedgerEntry.objects.exclude(period=period)
        assert all(late.values_list("correction", flat=True))
        assert verify().ok
        # Evidence that comes later is in the current month, and both still agree with the log.
        for story in stories:
            story.at = None
            story.deliver(10, announce=True)
        while settle_due()["more"]:
            pass
        _is_whole(period)
        assert LedgerEntry.objects.count() == 48

    def test_posted_without_looking_while_it_is_closed(self):
        period = last_month()
        refused: list[bool] = []
        numbers = iter(range(6))
        lot = threading.Lock()

        def work() -> None:
            with lot:
                number = next(numbers)
            if number == 0:
                _close_surely(period)
                return
            for _ in range(10):
                try:
                    post(period, "0.25")
                except IntegrityError:
                    refused.append(True)

        run_together(work, 6)
        total = _is_whole(period)
        lines = total.lines if total is not None else 0
        assert lines + len(refused) == 50

    def test_whoever_holds_the_month_is_waited_for(self):
        period = last_month()
        closer = threading.Thread(target=_in_own_connection(lambda: _close_surely(period)))
        with transaction.atomic():
            held, correction = open_period(period.tenant_id, then(period))
            assert (held, correction) == (period, False)
            closer.start()
            _until(lambda: _waits_for_a_lock("FOR UPDATE"))
            post(period, "5")
        closer.join()
        total = _is_whole(period)
        assert total is not None
        assert total.exact == 5

    def test_who_comes_while_it_is_being_closed_waits_and_is_late(self):
        period = last_month()
        found: list[Any] = []

        def come() -> None:
            with transaction.atomic():
                found.append(open_period(period.tenant_id, then(period)))

        comer = threading.Thread(target=_in_own_connection(come))
        with transaction.atomic():
            locks.lock_period(period.pk)
            comer.start()
            _until(lambda: _waits_for_a_lock("FOR KEY SHARE"))
            BillingPeriod.objects.filter(pk=period.pk).update(closed_at=timezone.now())
        comer.join()
        assert found == [(period_at(period.tenant_id, timezone.now()), True)]

    def test_a_reconciliation_sees_one_moment(self):
        # What is settled while it reads is no difference.
        add_plan()
        period = last_month()
        for _ in range(4):
            settle(ended_session(at=then(period)))
        late = [Story(at=then(period)) for _ in range(4)]
        told: list[Any] = []

        def meanwhile() -> None:
            for story in late:
                with transaction.atomic():  # as the journal writes an end
                    story.attempt()
                    story.tokens(4)
                    story.deliver(4)
                    story.end()
                settle(story)

        reports = run_together(
            lambda: meanwhile() if threading.current_thread() is _first(told) else
            [reconcile(period) for _ in range(5)], 3,
        )  # fmt: skip
        for report in (one for many in reports if many for one in many):
            assert report.differences == []


def _first(seen: list[Any]) -> threading.Thread:
    """The thread that asked first."""
    if not seen:
        seen.append(threading.current_thread())
    return seen[0]


def _close_surely(period: BillingPeriod) -> None:
    """As a person would: again, while lines are still being added."""
    while True:
        try:
            close_period(period.pk, actor=PAT, despite=EVERYTHING)
        except PeriodNotReady as exc:
            if "still being added" not in str(exc):
                raise
        else:
            return


def _is_whole(period: BillingPeriod) -> PeriodTotal | None:
    """The closed period's lines are those that were frozen."""
    period.refresh_from_db()
    assert period.closed_at is not None
    assert reconcile(period).differences == []
    total = PeriodTotal.objects.filter(period=period).first()
    amounts = list(LedgerEntry.objects.filter(period=period).values_list("amount", flat=True))
    assert len(amounts) == (0 if total is None else total.lines)
    return total


def _in_own_connection(task: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            task()
        finally:
            connection.close()

    return run


def _waits_for_a_lock(statement: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees only its first
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query LIKE %s",
            [f"%{statement}%"],
        )
        row = cursor.fetchone()
        return bool(row and row[0])


def _until(condition: Callable[[], bool]) -> None:
    ends = timezone.now() + timedelta(seconds=60)
    pause = threading.Event()
    while not condition():
        assert timezone.now() < ends
        pause.wait(0.01)
