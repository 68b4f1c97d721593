"""What a person has credited stays credited, whatever becomes of the tokens."""

from __future__ import annotations

from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.core import money
from billing.core.differences import Kind
from billing.models import LedgerEntry, Settlement, UsageRecord
from billing.services import rebuild
from billing.services.bills import left_of
from billing.services.credits import book_credit
from billing.services.periods import period_at
from billing.services.reconciliation import Report, reconcile
from billing.services.settlement import settle_session
from streaming.models import Tenant
from tests.billing.periods.books import guards_off
from tests.billing.rows import Story, add_plan, add_tenant

pytestmark = pytest.mark.django_db(transaction=True)

LOG = 12
PRICES = money.Prices(Decimal(1), Decimal("0.25"), Decimal(4))
_names = count(1)


def ended(tenant: Tenant, delivered: int) -> Story:
    story = Story(tenant, prompt=10, cached=4)
    story.attempt()
    story.tokens(LOG)
    story.end()
    move(story, delivered)
    return story


def move(story: Story, delivered: int) -> None:
    """So much was delivered, as it seems now; and it is settled."""
    story.deliver(delivered, by="socket", announce=True)
    settle_session(story.session.pk)


def give(charge: LedgerEntry, amount: Decimal) -> None:
    book_credit(charge_id=charge.pk, amount=amount, reason="slow", actor="user:pat")


def net(story: Story) -> Decimal:
    entries = LedgerEntry.objects.filter(session_id=story.session.pk)
    return money.total(entries.values_list("amount", flat=True))


def price(tokens: int) -> Decimal:
    prompt, cached = (10, 4) if tokens else (0, 0)
    return money.amount(PRICES, prompt=prompt, cached=cached, output=tokens)


def report(story: Story) -> Report:
    return reconcile(period_at(story.session.tenant_id, story.now))


def test_tokens_that_are_delivered_again_are_not_charged_to_whom_they_were_given():
    add_plan()
    story = ended(add_tenant(), LOG)
    charge = LedgerEntry.objects.get()
    give(charge, charge.amount)
    move(story, 0)
    assert net(story) == 0
    move(story, LOG)
    assert net(story) == 0
    lines = Settlement.objects.order_by("n").values_list("output_tokens", "amount")
    assert list(lines) == [(LOG, charge.amount), (-LOG, 0), (LOG, 0)]
    assert UsageRecord.objects.get().amount == charge.amount
    assert report(story).differences == []


def test_a_reconciliation_finds_what_was_charged_in_spite_of_a_credit():
    add_plan()
    story = ended(add_tenant(), LOG)
    charge = LedgerEntry.objects.get()
    give(charge, charge.amount)
    move(story, 0)
    move(story, LOG)
    last = Settlement.objects.get(n=3)
    with guards_off("billing_settlement", "billing_ledgerentry"):
        Settlement.objects.filter(pk=last.pk).update(amount=charge.amount)
        LedgerEntry.objects.filter(settlement=last).update(amount=charge.amount)
        UsageRecord.objects.update(amount=2 * charge.amount)
    assert set(report(story).found) == {Kind.AMOUNT_WRONG}


STEP = st.one_of(
    st.tuples(st.just("move"), st.integers(0, LOG)),
    st.tuples(st.just("move"), st.integers(0, LOG)),
    st.tuples(st.just("give"), st.integers(0, 5), st.integers(1, 20)),
)


@settings(
    max_examples=30, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(first=st.integers(0, LOG), steps=st.lists(STEP, min_size=3, max_size=12))
def test_a_credit_stands_and_is_never_more_than_what_was_charged(first, steps):
    tenant = add_tenant(f"tenant-{next(_names)}")
    add_plan(tenant)
    story = ended(tenant, first)
    highest, delivered, given_back = first, first, Decimal(0)
    for what, *values in steps:
        if what == "move":
            (delivered,) = values
            highest = max(highest, delivered)
            move(story, delivered)
        else:
            charges = LedgerEntry.objects.filter(session_id=story.session.pk, kind="charge")
            charge = charges.order_by("id")[values[0] % charges.count()]
            amount = min(left_of([charge])[charge.pk], values[1] * Decimal("0.000003"))
            if amount:
                give(charge, amount)
                given_back += amount
        # A credit of tokens that were denied since waits until they are charged again.
        assert max(price(delivered) - given_back, Decimal(0)) <= net(story) <= price(delivered)
        charges = LedgerEntry.objects.filter(session_id=story.session.pk, kind="charge")
        assert all(left >= 0 for left in left_of(charges).values())
    move(story, highest)
    assert net(story) == price(highest) - given_back
    assert report(story).differences == []
    assert not any(found.differences for found in rebuild.compare(tenant=tenant.name))
