"""Which prices are in force."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from billing.models import PricePlan


def plan_for(tenant_id: int, model: str, at: datetime) -> PricePlan | None:
    """The plan that prices ``model`` for a tenant at that moment; None: nobody has set a price."""
    in_force = PricePlan.objects.filter(
        Q(effective_to__isnull=True) | Q(effective_to__gt=at),
        Q(list__tenant_id=tenant_id) | Q(list__tenant_id__isnull=True),
        list__model__in=("", model),
        effective_from__lte=at,
    ).select_related("list")
    return max(
        in_force,
        key=lambda plan: (plan.list.tenant_id is not None, plan.list.model != ""),
        default=None,
    )
