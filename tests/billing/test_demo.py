"""``make run`` has prices, so that a visitor's chat has a bill."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.core.management import call_command

from billing.models import PricePlan
from billing.services.prices import plan_for, set_plan
from gateway_project.supervisor.demo import price_demo
from streaming.models import Tenant

pytestmark = pytest.mark.django_db


def test_the_demo_is_priced_once_and_stays_as_a_visitor_leaves_it():
    call_command("seed_demo_access")
    price_demo()
    price_demo()
    plan = PricePlan.objects.get()
    tenant = Tenant.objects.get()
    assert plan_for(tenant.pk, "any model", plan.effective_from) == plan
    assert plan.output_per_million > plan.input_per_million > plan.cached_input_per_million > 0
    set_plan(
        tenant_id=tenant.pk, model="", currency="EUR", input_per_million=Decimal(7),
        cached_input_per_million=Decimal(7), output_per_million=Decimal(7), actor="user:demo",
    )  # fmt: skip
    price_demo()
    assert PricePlan.objects.count() == 2
