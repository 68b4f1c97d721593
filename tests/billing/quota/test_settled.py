"""What settlements do to the use of a period."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing.models import AuditEntry, BudgetAlert, EventDelivery, QuotaReservation, QuotaUse
from billing.services import accounts, quota
from billing.services.periods import account_of, period_at
from billing.services.sinks import add_sink
from streaming.core.ids import uuid7
from streaming.models import Tenant
from tests.billing.lines import add_line, add_usage, settle
from tests.billing.rows import add_tenant
from tests.tasks.rows import add_session

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return add_tenant("acme")


def limit(tenant: Tenant, **values: Any) -> None:
    accounts.change_account(tenant.pk, actor="user:pat", **values)


def use_of(tenant: Tenant, at: datetime | None = None) -> QuotaUse:
    period = period_at(tenant.pk, at or timezone.now())
    return QuotaUse.objects.get(account_id=tenant.pk, period_name=period.name)


def reserve(tenant: Tenant, session_id: Any = None, tokens: int = 50, spend: str = "5") -> Any:
    """As ``admission`` does."""
    session_id = session_id or uuid7()
    with transaction.atomic():
        use = quota.use_of(account_of(tenant.pk), period_at(tenant.pk, timezone.now()).name)
        use.reserved_tokens += tokens
        use.reserved_spend += Decimal(spend)
        use.save()
        QuotaReservation.objects.create(
            session_id=session_id, use=use, tokens=tokens, spend=Decimal(spend),
            created_at=timezone.now(),
        )  # fmt: skip
    return session_id


def test_a_settlement_counts_prompt_and_answer(tenant):
    limit(tenant, spend_limit=Decimal(1000), spend_currency="EUR")
    usage = add_usage(tenant)
    settle(usage, 10, prompt=7, amount="1.000000000000000001")
    settle(usage, 5)
    use = use_of(tenant)
    assert (use.tokens, use.spent, use.currency) == (22, Decimal("6.000000000000000001"), "EUR")
    assert quota.recount() == []


def test_without_a_limit_tokens_are_counted_too_for_a_limit_that_comes(tenant):
    settle(add_usage(tenant), 10)
    assert use_of(tenant).tokens == 10
    assert use_of(tenant).spent == 0
    limit(tenant, spend_limit=Decimal(100), spend_currency="EUR")
    assert use_of(tenant).spent == 10
    assert quota.recount() == []


def test_what_is_given_back_is_usable_again(tenant):
    usage = add_usage(tenant)
    settle(usage, 10, prompt=7)
    settle(usage, -10, prompt=-7, kind="denied")
    assert use_of(tenant).tokens == 0


def test_money_in_another_currency_does_not_count(tenant):
    limit(tenant, spend_limit=Decimal(100), spend_currency="EUR")
    settle(add_usage(tenant, currency="USD"), 10, currency="USD")
    use = use_of(tenant)
    assert (use.tokens, use.spent) == (10, 0)


def test_each_period_has_its_own_use(tenant):
    limit(tenant, time_zone="Pacific/Auckland")
    usage = add_usage(tenant)
    for at in (datetime(2025, 5, 31, 11, 59, tzinfo=UTC), datetime(2025, 5, 31, 12, tzinfo=UTC)):
        settle(usage, 10, at=at)
    uses = QuotaUse.objects.filter(account_id=tenant.pk).values_list("period_name", "tokens")
    assert sorted(uses) == [("2025-05", 10), ("2025-06", 10)]


def test_the_first_settlement_releases_what_was_reserved(tenant):
    usage = add_usage(tenant)
    reserve(tenant, usage.pk)
    reserve(tenant)
    settle(usage, 0)
    use = use_of(tenant)
    assert (use.reserved_tokens, use.reserved_spend) == (50, 5)
    settle(usage, 10)  # a suspended session that goes on has nothing reserved
    use = use_of(tenant)
    assert (use.tokens, use.reserved_tokens) == (10, 50)
    assert quota.recount() == []


def test_a_settlement_that_is_rolled_back_has_released_nothing(tenant):
    usage = add_usage(tenant)
    reserve(tenant, usage.pk)
    with transaction.atomic():
        quota.settled(usage, add_line(usage, 10))
        transaction.set_rollback(True)
    assert use_of(tenant).reserved_tokens == 50
    assert use_of(tenant).tokens == 0


def test_the_sweep_gives_back_what_nobody_will_settle(tenant):
    ended = timezone.now() - timedelta(days=2)
    live, young, over = (
        add_session(None),
        uuid7(),
        add_session(None, ended_at=ended, state="failed"),
    )
    for session_id in (uuid7(), live.pk, young, over.pk):
        reserve(tenant, session_id)
    QuotaReservation.objects.exclude(session_id=young).update(
        created_at=timezone.now() - 2 * quota.NEVER_BEGAN
    )
    assert quota.release_stale() == {"released": 2, "more": False}
    assert set(QuotaReservation.objects.values_list("session_id", flat=True)) == {live.pk, young}
    assert use_of(tenant).reserved_tokens == 100
    assert quota.release_stale()["released"] == 0
    assert quota.recount() == []


def test_what_is_wrong_is_found_and_mended(tenant):
    limit(tenant, spend_limit=Decimal(1000), spend_currency="EUR")
    settle(add_usage(tenant), 10)
    reserve(tenant)
    QuotaUse.objects.update(tokens=3, spent=4, reserved_tokens=5, reserved_spend=6)
    found = quota.recount(tenant_id=tenant.pk)
    assert {(d.figure, d.stored, d.counted) for d in found} == {
        ("tokens", 3, 10), ("spent", 4, 10), ("reserved_tokens", 5, 50), ("reserved_spend", 6, 5),
    }  # fmt: skip
    assert quota.recount(tenant_id=tenant.pk, period_name="2020-01") == []
    assert quota.rebuild() == found
    assert quota.recount() == []


def test_a_use_that_is_missing_is_found(tenant):
    add_line(add_usage(tenant), 10)
    (found,) = quota.rebuild()
    assert (found.figure, found.stored, found.counted) == ("tokens", 0, 10)
    assert use_of(tenant).tokens == 10


@pytest.mark.django_db(transaction=True)
def test_settlements_beside_each_other_lose_nothing():
    tenant = add_tenant("acme")
    limit(tenant, token_limit=100)
    usages = [add_usage(tenant) for _ in range(4)]
    together = threading.Barrier(len(usages))

    def run(usage: Any) -> None:
        together.wait()
        for _ in range(5):
            settle(usage, 5)
        connection.close()

    threads = [threading.Thread(target=run, args=(usage,)) for usage in usages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert use_of(tenant).tokens == 100
    assert quota.recount() == []
    assert sorted(BudgetAlert.objects.values_list("threshold", flat=True)) == [80, 100]


# Budgets


def alerts(tenant: Tenant) -> list[tuple[str, int]]:
    rows = BudgetAlert.objects.filter(account_id=tenant.pk).order_by("measure", "threshold")
    return list(rows.values_list("measure", "threshold"))


@pytest.mark.parametrize("hard", [True, False])
def test_each_threshold_is_told_once(tenant, hard):
    add_sink(name="hook", url="https://hook.example/in", actor="user:pat", tenant_name="acme")
    add_sink(name="meter", url="https://meter.example", kind="openmeter", actor="user:pat")
    add_sink(
        name="other", url="https://hook.example/b", actor="user:pat",
        tenant_name=add_tenant("b").name,
    )  # fmt: skip
    limit(
        tenant,
        token_limit=100,
        spend_limit=Decimal(200),
        spend_currency="EUR",
        limits_are_hard=hard,
    )
    usage = add_usage(tenant)
    settle(usage, 79)
    assert alerts(tenant) == []
    settle(usage, 1)
    settle(usage, 1)
    assert alerts(tenant) == [("tokens", 80)]
    settle(usage, 100)
    assert alerts(tenant) == [("spend", 80), ("tokens", 80), ("tokens", 100)]
    told = EventDelivery.objects.filter(type="ai.unbroken.budget.reached").order_by("id")
    assert {delivery.sink.name for delivery in told} == {"hook"}
    period = period_at(tenant.pk, timezone.now()).name
    assert [delivery.event_id for delivery in told] == [
        f"budget:{tenant.pk}:{period}:tokens:80:100",
        f"budget:{tenant.pk}:{period}:tokens:100:100",
        f"budget:{tenant.pk}:{period}:spend:80:200",
    ]
    audited = AuditEntry.objects.filter(action="budget.reached")
    assert [entry.subject for entry in audited] == ["tenant:acme"] * 3


def test_one_settlement_may_reach_both(tenant):
    limit(tenant, token_limit=10)
    settle(add_usage(tenant), 500)
    assert alerts(tenant) == [("tokens", 80), ("tokens", 100)]


def test_a_limit_below_what_is_used_is_told_when_it_is_set(tenant):
    settle(add_usage(tenant), 90)
    limit(tenant, token_limit=100)
    assert alerts(tenant) == [("tokens", 80)]


def test_a_raised_limit_is_told_anew(tenant):
    limit(tenant, token_limit=100)
    usage = add_usage(tenant)
    settle(usage, 100)
    limit(tenant, token_limit=1000)
    assert alerts(tenant) == []
    settle(usage, 700)
    assert alerts(tenant) == [("tokens", 80)]
    limit(tenant, token_limit=1001)
    assert alerts(tenant) == []
    limit(tenant, token_limit=None)
    settle(usage, 700)
    assert alerts(tenant) == []
