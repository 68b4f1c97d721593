"""Random sessions, settled at random: whatever happens to them, the figures add up."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import count

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.core import money
from billing.core.policy import Policy, Progress, billable
from billing.core.settlement import Line, standing
from billing.models import LedgerEntry, Settlement, UsageRecord, Waste
from billing.services import rebuild
from billing.services.settlement import settle_session
from streaming.models import OutboxMessage, Tenant
from tests.billing.rows import Story, add_plan, add_tenant, settle_all

pytestmark = pytest.mark.django_db(transaction=True)

NODES = st.sampled_from("abc")
FEW = st.integers(1, 6)
PROOFS = st.sampled_from(["socket", "socket", "socket", "cursor", "ack"])
STEP = st.one_of(
    st.tuples(st.just("tokens"), st.integers(1, 9)),
    st.tuples(st.just("tokens"), st.integers(1, 9)),
    st.tuples(st.just("fail"), NODES, FEW, FEW),
    st.tuples(st.just("crash"), NODES),
    st.tuples(st.just("send"), FEW),
    st.tuples(st.just("deliver"), FEW, PROOFS),
    st.tuples(st.just("deliver"), FEW, PROOFS),
    st.tuples(st.just("deny"), FEW),
    st.tuples(st.just("deny"), FEW),
    st.tuples(st.just("suspend")),
    st.tuples(st.just("resume"), NODES),
    st.tuples(st.just("settle by name")),
    st.tuples(st.just("announce again"), st.sampled_from(OutboxMessage.Kind.values[:3])),
)
STEPS = st.tuples(STEP, st.booleans())
"""What happens, and whether the worker comes by after it."""
ENDS = st.sampled_from(["completed", "stopped", "cancelled", "failed", "abandoned"])
PRICES = st.decimals(0, 99, places=8)
_names = count(1)


def take(story: Story, step: tuple) -> None:
    """One step, where it is possible."""
    what, *values = step
    over = story.session.ended_at is not None
    suspended = story.session.state == "suspended"
    quiet = over or suspended  # what moves then is announced
    if what == "settle by name":
        settle_session(story.session.pk)
    elif what == "announce again":
        story.announce(values[0])
    elif what == "deliver":
        most = max(story.fence.sent_seq, story.fence.durable_seq)
        story.deliver(
            min(most, story.fence.delivered_seq + values[0]), by=values[1], announce=quiet
        )
    elif what == "deny":
        story.deny(max(0, story.fence.delivered_seq - values[0]), announce=quiet)
    elif what == "send":
        story.send(min(story.fence.durable_seq, story.fence.sent_seq + values[0]))
        if quiet:
            story.announce("session_delivered")
    elif what == "resume" and suspended:
        story.attempt(values[0], grade="exact", kind="resumption")
    elif not quiet:
        if what == "tokens":
            story.tokens(values[0])
        elif what == "fail":
            story.fail("engine_crash", discarded=values[1], repeated=values[2])
            story.attempt(values[0], grade="regenerated")
        elif what == "crash":
            story.crash()
            story.attempt(values[0], grade="exact")
        elif what == "suspend":
            story.suspend()


@settings(
    max_examples=30, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(
    steps=st.lists(STEPS, min_size=8, max_size=20),
    end=ENDS,
    after=st.lists(STEPS, min_size=1, max_size=6),
    policy=st.sampled_from(list(Policy)),
    prompt=st.none() | st.integers(1, 40),
    cached=st.none() | st.integers(0, 50),
    prices=st.tuples(PRICES, PRICES, PRICES, st.decimals(0, 9, places=4)),
)
def test_the_figures_of_any_session_add_up(steps, end, after, policy, prompt, cached, prices):
    tenant = add_tenant(f"tenant-{next(_names)}")
    per_input, per_cached, per_output, coefficient = prices
    add_plan(
        tenant, policy=policy, input=str(per_input), cached=str(per_cached),
        output=str(per_output), coefficient=coefficient, cost="1",
    )  # fmt: skip
    story = Story(tenant, prompt=prompt, cached=cached, at=timezone.now() - timedelta(hours=1))
    story.attempt("a")
    for step, settled in steps:
        take(story, step)
        if settled:
            settle_all()
    story.end(end)
    for step, settled in after:
        if settled:
            settle_all()
        take(story, step)
    settle_all()
    check(story, policy, tenant)
    before = snapshot(story)
    for kind in ("session_ended", "session_suspended", "session_delivered", "session_ended"):
        story.announce(kind)
    settle_all()
    assert settle_session(story.session.pk) == []
    assert snapshot(story) == before


def check(story: Story, policy: Policy, tenant: Tenant) -> None:
    usage = UsageRecord.objects.get(pk=story.session.pk)
    lines = list(Settlement.objects.filter(usage=usage).order_by("n"))
    delivered = min(story.fence.delivered_seq, story.log)
    progress = Progress(
        story.session.state, story.log, min(story.fence.sent_seq, story.log), delivered
    )
    # What is billed is what was delivered, or what the contract says; nothing twice.
    billed = billable(policy, progress)
    if policy is Policy.DELIVERED:
        assert billed == delivered
    assert usage.billed_tokens == sum(line.output_tokens for line in lines) == billed
    prompt = (story.session.prompt_tokens or 0) if billed else 0
    assert usage.prompt_tokens == sum(line.prompt_tokens for line in lines) == prompt
    assert [line.n for line in lines] == list(range(1, usage.settlements + 1))
    charged = [token for line in left(lines) for token in range(line.start, line.end)]
    assert charged == list(range(billed))
    # The money, to the last digit.
    unit = lines[0]
    amount = money.amount(
        money.Prices(
            unit.input_per_million, unit.cached_input_per_million, unit.output_per_million,
            unit.coefficient,
        ),
        prompt=prompt, cached=usage.cached_tokens, output=billed,
    )  # fmt: skip
    assert usage.amount == money.total(line.amount for line in lines) == amount
    entries = LedgerEntry.objects.filter(session_id=story.session.pk)
    assert entries.count() == len(lines)
    assert money.total(entry.amount for entry in entries) == amount
    for charge in entries.filter(kind="charge"):
        assert charge.amount + sum(credit.amount for credit in charge.credits.all()) >= 0
    # What was generated was delivered or wasted.
    wasted = Waste.objects.filter(usage=usage)
    assert usage.generated_tokens == story.generated
    assert sum(row.tokens for row in wasted) + delivered == story.generated
    cost = money.cost(Decimal(1), story.generated - delivered)
    assert money.total(row.cost or Decimal(0) for row in wasted) == cost
    assert not any(found.differences for found in rebuild.compare(tenant=tenant.name))


def left(lines: list[Settlement]) -> list[Line]:
    numbers = {line.pk: line.n for line in lines}
    return standing(
        [
            Line(
                line.n, line.from_tokens, line.to_tokens,
                corrects=None if line.corrects_id is None else numbers[line.corrects_id],
            )
            for line in lines
        ]
    )  # fmt: skip


def snapshot(story: Story) -> list:
    return [
        list(Settlement.objects.filter(usage=story.session.pk).order_by("n").values()),
        list(LedgerEntry.objects.filter(session_id=story.session.pk).order_by("pk").values()),
        list(UsageRecord.objects.filter(pk=story.session.pk).values()),
    ]
