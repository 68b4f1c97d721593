"""Price plans: which counts, how they follow each other, and that the past stays."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, transaction
from django.utils import timezone

from billing.core.policy import Policy
from billing.errors import PlansOverlap, PriceRefused
from billing.models import AuditEntry, PriceList, PricePlan, Settlement
from billing.services import prices
from billing.services.prices import end_plan, plan_for, set_plan, withdraw_plan
from tests.billing.periods.books import settle
from tests.billing.rows import add_plan, add_tenant, ended_session
from tests.tasks.rows import run_together

NOW = datetime(2026, 11, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)


def put(**arguments: Any) -> PricePlan:
    values: dict[str, Any] = {
        "tenant_id": None, "model": "", "currency": "EUR", "actor": "user:pat",
        "input_per_million": Decimal(1), "cached_input_per_million": Decimal("0.25"),
        "output_per_million": Decimal(4), **arguments,
    }  # fmt: skip
    return set_plan(**values)


@pytest.mark.django_db
def test_the_most_special_list_counts():
    tenant, other = add_tenant(), add_tenant("other")
    everybodys = add_plan()
    of_model = add_plan(model="m")
    of_tenant = add_plan(tenant)
    of_both = add_plan(tenant, "m")
    add_plan(other, "n")
    assert plan_for(tenant.pk, "m", NOW) == of_both
    assert plan_for(tenant.pk, "n", NOW) == of_tenant
    assert plan_for(other.pk, "m", NOW) == of_model
    assert plan_for(other.pk, "o", NOW) == everybodys
    of_both.effective_to = NOW
    of_both.save()
    assert plan_for(tenant.pk, "m", NOW - HOUR) == of_both
    assert plan_for(tenant.pk, "m", NOW) == of_tenant


@pytest.mark.django_db
def test_nobody_has_set_a_price():
    tenant = add_tenant()
    add_plan(effective_from=NOW)
    assert plan_for(tenant.pk, "m", NOW - HOUR) is None


@pytest.mark.django_db
def test_a_new_price_ends_the_one_before_and_both_are_audited():
    tenant = add_tenant()
    first = put(tenant_id=tenant.pk, model="m")
    at = timezone.now() + HOUR
    second = put(
        tenant_id=tenant.pk, model="m", output_per_million=Decimal("5.5"), effective_from=at,
        policy=Policy.INTERRUPT_COMPENSATED, cost_per_million=Decimal("0.9"), note="contract 7",
    )  # fmt: skip
    first.refresh_from_db()
    assert (first.effective_to, second.effective_to) == (at, None)
    assert PriceList.objects.count() == 1
    assert plan_for(tenant.pk, "m", at - HOUR / 2) == first
    assert plan_for(tenant.pk, "m", at) == second
    one, ended, two = AuditEntry.objects.order_by("seq")
    assert (ended.action, ended.subject) == ("price.ended", one.subject)
    assert (one.action, one.actor, one.subject) == ("price.set", "user:pat", f"price:{first.pk}")
    assert json.loads(one.data)["old"] is None
    data = json.loads(two.data)
    assert Decimal(data["old"]["output_per_million"]) == 4
    assert data["old"]["effective_to"] is None
    assert Decimal(data["new"]["output_per_million"]) == Decimal("5.5")
    assert (data["new"]["policy"], data["new"]["note"]) == ("interrupt_compensated", "contract 7")


@pytest.mark.django_db
@pytest.mark.parametrize("note", ["", "  "])
def test_interruptions_are_compensated_only_by_a_contract_that_is_named(note):
    with pytest.raises(PriceRefused, match="name the contract"):
        put(policy=Policy.INTERRUPT_COMPENSATED, note=note)
    assert not PricePlan.objects.exists()


@pytest.mark.django_db
def test_prices_cannot_begin_where_later_ones_are():
    later = put(effective_from=timezone.now() + HOUR)
    for at in (None, later.effective_from, timezone.now()):
        with pytest.raises(PlansOverlap, match=f"number {later.pk}"):
            put(effective_from=at)
    assert PricePlan.objects.get().effective_to is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        {"currency": "euro"},
        {"currency": "eur"},
        {"currency": "EUX"},
        {"currency": "XXX"},
        {"policy": Policy.INTERRUPT_COMPENSATED},
        {"policy": Policy.INTERRUPT_COMPENSATED, "note": " "},
        {"input_per_million": Decimal(-1)},
        {"output_per_million": Decimal("0.000000001")},
        {"coefficient": Decimal("1.00001")},
        {"cost_per_million": Decimal(-1)},
        {"model": "m" * 201},
        {"note": "n" * 301},
    ],
)
def test_what_is_no_price(wrong):
    with pytest.raises(PriceRefused):
        put(**wrong)
    assert not PricePlan.objects.exists()


@pytest.mark.django_db
def test_a_float_is_no_price():
    with pytest.raises(TypeError):
        put(output_per_million=0.1)


@pytest.mark.django_db
class TestThePast:
    def test_prices_may_begin_there_while_nothing_was_settled(self):
        tenant = add_tenant()
        ended_session(ago=HOUR)
        plan = put(effective_from=timezone.now() - 2 * HOUR)
        assert plan_for(tenant.pk, "m", timezone.now() - HOUR) == plan

    @pytest.mark.parametrize("had", ["no price", "the same list", "a less special list"])
    def test_not_where_sessions_were_settled_that_they_would_be_for(self, had):
        tenant = add_tenant()
        if had == "the same list":
            add_plan(tenant, "m")
        if had == "a less special list":
            add_plan(tenant)
            add_plan(model="m")
        entry = settle(ended_session(ago=HOUR))
        with pytest.raises(PriceRefused, match=str(entry.session_id)):
            put(tenant_id=tenant.pk, model="m", effective_from=timezone.now() - 2 * HOUR)
        put(tenant_id=tenant.pk, model="m", effective_from=timezone.now() - HOUR / 2)

    @pytest.mark.parametrize("listed", [(False, "m"), (True, ""), (False, "")])
    def test_but_where_a_more_special_list_was_for_them(self, listed):
        tenant = add_tenant()
        add_plan(tenant, "m")
        settle(ended_session(ago=HOUR))
        special, model = listed
        put(
            tenant_id=tenant.pk if special else None,
            model=model,
            effective_from=timezone.now() - 2 * HOUR,
        )

    def test_a_line_keeps_the_price_it_was_made_with(self):
        add_plan()
        entry = settle(ended_session(ago=HOUR))
        before = Settlement.objects.values().get()
        put(output_per_million=Decimal(400))
        assert Settlement.objects.values().get() == before
        entry.refresh_from_db()
        assert entry.amount == Decimal("0.00005")

    def test_the_database_keeps_what_a_plan_was(self):
        plan = put()
        for change in ({"output_per_million": Decimal(5)}, {"currency": "USD"}, {"note": "x"}):
            with pytest.raises(DatabaseError, match="only its end"), transaction.atomic():
                PricePlan.objects.update(**change)
        with pytest.raises(DatabaseError, match="only its end"), transaction.atomic():
            plan.delete()


@pytest.mark.django_db
class TestTakingBack:
    def test_a_plan_that_has_not_begun(self):
        first = put()
        at = timezone.now() + HOUR
        second = put(effective_from=at)
        number = second.pk
        withdraw_plan(number, actor="user:pat")
        first.refresh_from_db()
        assert first.effective_to is None
        assert list(PricePlan.objects.all()) == [first]
        entry = AuditEntry.objects.latest("seq")
        assert (entry.action, entry.subject) == ("price.withdrawn", f"price:{number}")
        entry = AuditEntry.objects.get(seq=entry.seq - 1)
        assert (entry.action, entry.subject) == ("price.extended", f"price:{first.pk}")

    def test_not_one_that_has(self):
        plan = put()
        with pytest.raises(PriceRefused, match="has begun"):
            withdraw_plan(plan.pk, actor="user:pat")
        with pytest.raises(PriceRefused, match="no plan 0"):
            withdraw_plan(0, actor="user:pat")

    def test_an_end_without_a_successor(self):
        plan = put()
        at = timezone.now() + HOUR
        end_plan(plan.pk, effective_to=at, actor="user:pat")
        assert plan_for(add_tenant().pk, "m", at) is None
        for wrong in (timezone.now() - HOUR, at + HOUR):
            with pytest.raises(PriceRefused):
                end_plan(plan.pk, effective_to=wrong, actor="user:pat")
        assert AuditEntry.objects.latest("seq").action == "price.ended"


@pytest.mark.django_db(transaction=True)
def test_set_at_once_by_many_the_prices_follow_each_other():
    def attempt() -> str:
        try:
            put()
        except PlansOverlap:
            return "refused"
        return "set"

    done = run_together(attempt, 5)
    plans = list(PricePlan.objects.order_by("effective_from"))
    assert len(plans) == done.count("set") >= 1
    for one, other in pairwise(plans):
        assert one.effective_to == other.effective_from
    assert plans[-1].effective_to is None


@pytest.mark.django_db(transaction=True)
def test_the_database_refuses_what_overlaps_also_at_once():
    listed = PriceList.objects.create(tenant=add_tenant(), model="m")
    other = PriceList.objects.create(tenant=add_tenant(), model="n")
    moments = iter([(0, 5), (4, None), (0, 9), (3, 4), (2, None)])

    def insert() -> bool:
        begins, ends = next(moments)
        try:
            PricePlan.objects.create(
                list=listed, currency="EUR", input_per_million=1, cached_input_per_million=1,
                output_per_million=1, effective_from=NOW + begins * HOUR,
                effective_to=None if ends is None else NOW + ends * HOUR, created_by="user:pat",
            )  # fmt: skip
        except IntegrityError:
            return False
        return True

    assert any(run_together(insert, 5))
    plans = list(PricePlan.objects.order_by("effective_from"))
    for one, after in pairwise(plans):
        assert one.effective_to is not None
        assert one.effective_to <= after.effective_from
    PricePlan.objects.create(
        list=other, currency="EUR", input_per_million=1, cached_input_per_million=1,
        output_per_million=1, effective_from=NOW, created_by="user:pat",
    )  # fmt: skip


def test_the_figures_of_a_plan_are_all_audited():
    columns = {field.name for field in PricePlan._meta.fields}
    assert columns - set(prices.FIGURES) == {"id", "list", "created_by", "created_at"}
