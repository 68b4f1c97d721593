"""Every difference is found and named; and where there is none, none is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from billing.core.differences import Kind
from billing.errors import BillingError, PeriodNotReady
from billing.models import BillingPeriod, LedgerEntry, PeriodTotal, Settlement, UsageRecord, Waste
from billing.services import proofs, reconciliation
from billing.services.closing import close_period
from billing.services.credits import book_adjustment, book_credit
from billing.services.periods import period_at
from billing.services.reconciliation import Report, reconcile
from streaming.models import (
    Attempt,
    OutboxMessage,
    SessionFence,
    StreamSession,
    TokenCheckpoint,
)
from tests.billing.periods.books import guards_off, settle
from tests.billing.rows import Story, add_plan, add_tenant, ended_session

pytestmark = pytest.mark.django_db


def a_long_story() -> Story:
    """Failed over, suspended and settled, resumed, ended; not all of it delivered, some denied."""
    story = Story(prompt=12, cached=4)
    story.attempt("a")
    story.tokens(5)
    story.fail("engine_crash", discarded=2)
    story.attempt("b", grade="exact")
    story.tokens(7)
    story.deliver(12, by="socket")
    story.suspend()
    settle(story)
    story.deny(9, announce=True)
    settle(story)
    story.attempt("b", grade="exact")
    story.tokens(6)
    story.deliver(15)
    story.end("cancelled", "client_gone")
    settle(story)
    return story


def report(**arguments: Any) -> Report:
    period = period_at(add_tenant().pk, timezone.now())
    return reconcile(period, **arguments)


def kinds(found: Report) -> set[Kind]:
    return set(found.found)


class TestNothingDiffers:
    def test_in_a_story_with_everything_in_it(self):
        add_plan(cost="2")
        a_long_story()
        purged = ended_session(20, delivered=17, state="stopped")
        settle(purged)
        purged.purge()
        settle(ended_session(0, delivered=0, state="failed"))
        charge = LedgerEntry.objects.filter(amount__gt=0).earliest("id")
        book_credit(charge_id=charge.pk, amount=Decimal("0.00001"), reason="r", actor="user:pat")
        book_adjustment(
            tenant_id=add_tenant().pk,
            currency="EUR",
            amount=Decimal(3),
            reason="r",
            actor="user:pat",
        )
        found = report()
        assert found.differences == []
        assert found.is_proven
        assert (found.sessions, found.settlements, found.lines) == (3, 5, 7)
        assert (found.recounted, found.purged, found.in_flux) == (2, 1, 0)
        assert (found.log_tokens, found.delivered_tokens, found.billed_tokens) == (38, 32, 32)
        assert found.generated_tokens == found.delivered_tokens + found.wasted_tokens == 40
        (total,) = found.totals
        exact = sum(LedgerEntry.objects.values_list("amount", flat=True))
        assert total.amount == exact == total.charges + total.credits + total.adjustments
        settled = sum(UsageRecord.objects.values_list("amount", flat=True))
        assert (total.adjustments, total.settled) == (3, settled)

    def test_in_a_session_that_goes_on(self):
        add_plan()
        story = Story()
        story.attempt()
        story.tokens(5)
        story.deliver(5)
        story.suspend()
        settle(story)
        story.attempt()
        story.tokens(5)
        story.deliver(9)
        found = report()
        assert (found.differences, found.in_flux) == ([], 1)

    def test_in_one_that_waits_to_be_settled(self):
        add_plan()
        story = ended_session(10, delivered=4)
        settle(story)
        story.deliver(9, announce=True)
        assert OutboxMessage.objects.filter(handled_at=None).count() == 1
        found = report()
        assert (found.differences, found.in_flux) == ([], 1)

    def test_in_a_session_of_two_periods_seen_from_either(self):
        add_plan()
        now = timezone.now()
        current = period_at(add_tenant().pk, now)
        former = period_at(add_tenant().pk, current.starts_at - timedelta(hours=1))
        story = Story(at=former.ends_at - timedelta(minutes=5))
        story.attempt()
        story.tokens(5)
        story.deliver(5)
        story.suspend()
        settle(story)
        story.at = current.starts_at + timedelta(minutes=5)
        story.attempt()
        story.tokens(5)
        story.deliver(10)
        story.end()
        settle(story)
        for period in (former, current):
            found = reconcile(period)
            assert (found.differences, found.sessions, found.settlements) == ([], 1, 1)
            assert found.billed_tokens == 10

    def test_where_a_person_had_given_back_some_of_it_before(self):
        add_plan()
        story = Story()
        story.attempt()
        story.tokens(10)
        story.deliver(10, by="socket")
        story.end()
        charge = settle(story)
        book_credit(charge_id=charge.pk, amount=charge.amount / 2, reason="r", actor="user:pat")
        story.deny(0, announce=True)
        settle(story)
        assert sum(LedgerEntry.objects.values_list("amount", flat=True)) == 0
        assert report().differences == []

    def test_under_the_other_policy(self):
        add_plan(policy="interrupt_compensated")
        settle(ended_session(10, delivered=4, state="cancelled", cause="client_gone"))
        found = report()
        assert (found.differences, found.billed_tokens, found.delivered_tokens) == ([], 5, 4)

    def test_page_by_page(self, monkeypatch):
        add_plan()
        for _ in range(7):
            a_long_story()
        whole = report()
        monkeypatch.setattr(reconciliation, "PAGE", 2)
        monkeypatch.setattr(reconciliation, "LOG_ROWS", 3)
        paged = report()
        assert (paged.as_dict(), paged.sessions) == (whole.as_dict(), 7)
        assert paged.is_proven

    def test_in_an_empty_period(self):
        assert report().is_proven


def _line(story: Story) -> Any:
    return LedgerEntry.objects.filter(session_id=story.session.pk)


def _usage(story: Story) -> Any:
    return UsageRecord.objects.filter(pk=story.session.pk)


def _log(story: Story) -> Any:
    return TokenCheckpoint.objects.filter(session=story.session, first_seq=6)


def _other_period(story: Story) -> BillingPeriod:
    return period_at(story.session.tenant_id, timezone.now() + timedelta(days=40))


WRONGS: dict[str, tuple[Kind, Callable[[Story], Any]]] = {
    "a line's amount": (
        Kind.LINE_DIFFERS, lambda s: _line(s).filter(amount__gt=0).update(amount=Decimal("1.5")),
    ),
    "a line's currency": (Kind.LINE_DIFFERS, lambda s: _line(s).update(currency="USD")),
    "a line's session": (Kind.LINE_DIFFERS, lambda s: _line(s).update(session_id=uuid4())),
    "a line's period": (
        Kind.LINE_DIFFERS, lambda s: _line(s).filter(settlement__n=1).update(period=_other_period(s)),
    ),
    "a line that is gone": (
        Kind.LINE_MISSING,
        lambda s: _line(s).filter(settlement__n=3).delete(),
    ),
    "a settlement's amount": (
        Kind.AMOUNT_WRONG, lambda s: Settlement.objects.filter(n=1).update(amount=Decimal("0.5")),
    ),
    "a settlement's price": (
        Kind.AMOUNT_WRONG, lambda s: Settlement.objects.update(output_per_million=Decimal(40)),
    ),
    "a settlement's coefficient": (
        Kind.AMOUNT_WRONG, lambda s: Settlement.objects.update(coefficient=Decimal("0.5")),
    ),
    "a settlement's tokens": (
        Kind.CHAIN_BROKEN,
        lambda s: Settlement.objects.filter(usage_id=s.session.pk, n=1).update(
            to_tokens=11, output_tokens=11
        ),
    ),
    "a usage record's tokens": (Kind.USAGE_DIFFERS, lambda s: _usage(s).update(billed_tokens=16)),
    "a usage record's prompt": (Kind.USAGE_DIFFERS, lambda s: _usage(s).update(prompt_tokens=13)),
    "a usage record's amount": (Kind.USAGE_DIFFERS, lambda s: _usage(s).update(amount=1)),
    "a session that is gone": (
        Kind.SESSION_MISSING, lambda s: StreamSession.objects.filter(pk=s.session.pk).delete(),
    ),
    "a fence that is gone": (Kind.SESSION_MISSING, lambda s: SessionFence.objects.all().delete()),
    "a row of the log that is gone": (Kind.LOG_COUNT, lambda s: _log(s).delete()),
    "a log's text": (Kind.LOG_DIGEST, lambda s: _log(s).update(text=b"yxxxxxx")),
    "a log's ids": (
        Kind.LOG_DIGEST, lambda s: _log(s).update(token_ids=b"\2\0\0\0" + b"\1\0\0\0" * 6),
    ),
    "a token taken out of the log": (
        Kind.LOG_COUNT, lambda s: _log(s).update(token_ids=b"\1\0\0\0" * 6, text=b"x" * 6),
    ),
    "the session's count": (
        Kind.LOG_COUNT, lambda s: StreamSession.objects.update(completion_tokens=19),
    ),
    "tokens as settled": (Kind.LOG_COUNT, lambda s: _usage(s).update(log_tokens=17)),
    "the evidence": (Kind.DELIVERED_DIFFERS, lambda s: SessionFence.objects.update(acked_seq=11)),
    "delivered as settled": (
        Kind.DELIVERED_DIFFERS, lambda s: _usage(s).update(delivered_tokens=14),
    ),
    "more delivered than there is": (
        Kind.DELIVERED_DIFFERS, lambda s: _usage(s).update(delivered_tokens=19),
    ),
    "the prompt's length": (
        Kind.BILLED_DIFFERS, lambda s: StreamSession.objects.update(prompt_tokens=11),
    ),
    "the evidence, and so what is owed": (
        Kind.BILLED_DIFFERS, lambda s: SessionFence.objects.update(acked_seq=17, sent_seq=17),
    ),
    "an outbox message that never was": (
        Kind.BILLED_DIFFERS, lambda s: SessionFence.objects.update(acked_seq=18, sent_seq=18),
    ),
    "waste that is gone": (Kind.WASTE_DIFFERS, lambda s: Waste.objects.all().delete()),
    "generated tokens": (Kind.WASTE_DIFFERS, lambda s: _usage(s).update(generated_tokens=21)),
    "an attempt's discarded tokens": (
        Kind.WASTE_DIFFERS, lambda s: Attempt.objects.filter(number=1).update(discarded_tokens=3),
    ),
    "the engine's count": (
        Kind.ENGINE_USAGE,
        lambda s: Attempt.objects.filter(number=1).update(engine_completion_tokens=8),
    ),
    "more credited than charged": (
        Kind.CREDITS_EXCEED,
        lambda s: LedgerEntry.objects.create(
            kind="credit", tenant=s.session.tenant, period=_line(s).first().period,
            charge=_line(s).get(settlement__n=1), currency="EUR", amount=Decimal(-1), reason="r",
            actor="user:pat", idempotency_key="k", created_at=timezone.now(),
        ),
    ),
}  # fmt: skip


class TestADifference:
    @pytest.mark.parametrize("wrong", WRONGS)
    def test_is_found_and_named(self, wrong):
        add_plan(cost="2")
        story = a_long_story()
        other = ended_session(3)
        settle(other)
        assert report().is_proven
        kind, change = WRONGS[wrong]
        with guards_off("billing_ledgerentry", "billing_settlement", "billing_periodtotal"):
            change(story)
            connection.check_constraints()
        told: list[Any] = []
        found = report(tell=told.append)
        assert kind in kinds(found), found.differences
        first = next(one for one in found.differences if one.kind is kind)
        assert first.session_id == story.session.pk or wrong in (
            "a line's session", "more credited than charged",
        )  # fmt: skip
        assert first.found != first.expected
        assert str(kind) in str(first)
        assert told == found.differences
        assert sum(found.found.values()) == len(told)

    def test_of_a_session_that_nobody_told_of(self):
        add_plan()
        ended = ended_session(3)
        suspended = Story()
        suspended.attempt()
        suspended.tokens(2)
        suspended.suspend()
        assert report().is_proven  # the outbox has them
        OutboxMessage.objects.update(handled_at=timezone.now())
        found = report()
        assert {(one.kind, one.session_id, one.subject) for one in found.differences} == {
            (Kind.UNSETTLED, ended.session.pk, "completed"),
            (Kind.UNSETTLED, suspended.session.pk, "suspended"),
        }

    @pytest.mark.parametrize(
        ("change", "kind"),
        [
            ({"log_digest": None}, Kind.LOG_DIGEST),
            ({"log_digest": b"short"}, Kind.LOG_DIGEST),
            ({"completion_tokens": 17}, Kind.LOG_COUNT),
        ],
    )
    def test_of_a_purged_session(self, change, kind):
        add_plan()
        story = a_long_story()
        story.purge()
        assert report().is_proven
        StreamSession.objects.filter(pk=story.session.pk).update(**change)
        assert kind in kinds(report())

    @pytest.mark.parametrize("change", [{"first_seq": 4}, {"last_seq": 30}])
    def test_of_a_purged_sessions_attempts(self, change):
        add_plan()
        a_long_story().purge()
        Attempt.objects.filter(number=2).update(**change)
        assert kinds(report()) == {Kind.LOG_COUNT}

    def test_of_a_closed_periods_total(self):
        add_plan()
        tenant = add_tenant()
        last_month = period_at(tenant.pk, timezone.now()).starts_at - timedelta(days=2)
        settle(ended_session(at=last_month))
        period = period_at(tenant.pk, last_month)
        close_period(period.pk, actor="user:pat")
        period.refresh_from_db()
        assert reconcile(period).is_proven
        with guards_off("billing_periodtotal"):
            PeriodTotal.objects.update(rounded=1)
        found = reconcile(period)
        assert kinds(found) == {Kind.TOTAL_DIFFERS}

    @pytest.mark.parametrize("empty", [False, True])
    def test_of_a_closed_period_that_was_reopened(self, empty):
        add_plan()
        tenant = add_tenant()
        last_month = period_at(tenant.pk, timezone.now()).starts_at - timedelta(days=2)
        period = period_at(tenant.pk, last_month)
        if not empty:
            settle(ended_session(at=last_month))
        close_period(period.pk, actor="user:pat")
        with guards_off("billing_billingperiod", "billing_periodtotal"):
            BillingPeriod.objects.update(closed_at=None, closed_by="")
            PeriodTotal.objects.update(rounded=1)
        period.refresh_from_db()
        wanted = {Kind.REOPENED} if empty else {Kind.REOPENED, Kind.TOTAL_DIFFERS}
        assert kinds(reconcile(period)) == wanted
        with pytest.raises(PeriodNotReady, match="differences"):
            close_period(period.pk, actor="user:pat")
        with pytest.raises(BillingError, match="was closed before"):
            close_period(period.pk, actor="user:pat", despite=frozenset({"differences"}))

    def test_is_counted_but_not_kept_without_end(self, monkeypatch):
        monkeypatch.setattr(reconciliation, "KEPT", 2)
        add_plan()
        for _ in range(4):
            settle(ended_session(2))
        UsageRecord.objects.update(amount=1)
        found = report()
        assert (found.found, len(found.differences)) == ({Kind.USAGE_DIFFERS: 4}, 2)


def test_engines_are_compared_by_node():
    add_plan()
    for told in (10, 10, 11, None):
        story = ended_session(10)
        settle(story)
        Attempt.objects.filter(session=story.session).update(engine_completion_tokens=told)
    found = report()
    tally = found.engines["a"]
    assert (tally.attempts, tally.told, tally.counted, tally.differing) == (3, 31, 30, 1)
    assert found.found == {Kind.ENGINE_USAGE: 1}


def test_the_log_is_recounted_wherever_it_was_cut():
    recount = proofs.Recount()
    story = a_long_story() if add_plan() else None
    assert story is not None
    for row in TokenCheckpoint.objects.order_by("first_seq"):
        recount.add(
            row.first_seq, row.last_seq, bytes(row.token_ids), bytes(row.text), bytes(row.digest),
            row.terminal is not None,
        )  # fmt: skip
    assert (recount.tokens, recount.altered) == (18, None)
