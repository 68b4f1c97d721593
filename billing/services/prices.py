"""Which prices are in force, and setting them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from billing.core.policy import Policy
from billing.errors import PlansOverlap, PriceRefused
from billing.locks import lock_price_list
from billing.models import PriceList, PricePlan, UsageRecord
from billing.services import audit

FIGURES = (
    "currency",
    "input_per_million",
    "cached_input_per_million",
    "output_per_million",
    "cost_per_million",
    "coefficient",
    "policy",
    "effective_from",
    "effective_to",
    "note",
)


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


@transaction.atomic
def set_plan(
    *,
    tenant_id: int | None,
    model: str,
    currency: str,
    input_per_million: Decimal,
    cached_input_per_million: Decimal,
    output_per_million: Decimal,
    effective_from: datetime | None = None,
    cost_per_million: Decimal | None = None,
    coefficient: Decimal = Decimal(1),
    policy: Policy = Policy.DELIVERED,
    note: str = "",
    actor: str,
) -> PricePlan:
    """Have these prices from ``effective_from`` (default: now) on, until others are set.

    ``tenant_id`` None: everybody's; ``model`` empty: every model's. The plan of the same list that
    is in force then ends there; nothing else of it changes. Raises ``PlansOverlap`` where a plan
    begins then or later: withdraw that one first. Raises ``PriceRefused`` for figures that are no
    prices, for a compensating policy without a note that names the contract, and for a time in the past since which sessions were settled that these prices would have
    been for: what is settled keeps its price, and one list would then tell of another.
    """
    now = timezone.now()
    at = effective_from or now
    prices = lock_price_list(_list_of(tenant_id, model).pk)
    plan = PricePlan(
        list=prices,
        effective_from=at,
        currency=currency,
        input_per_million=input_per_million,
        cached_input_per_million=cached_input_per_million,
        output_per_million=output_per_million,
        cost_per_million=cost_per_million,
        coefficient=coefficient,
        policy=policy.value,
        note=note,
        created_by=actor,
        created_at=now,
    )
    _check_figures(plan)
    later = prices.plans.filter(effective_from__gte=at).order_by("effective_from").first()
    if later is not None:
        raise PlansOverlap(
            f"There is a plan from {_minute(later.effective_from)} on already (number {later.pk});"
            f" these prices cannot begin at {_minute(at)}."
        )
    if at < now:
        _check_nothing_settled(prices, at)
    former = prices.plans.filter(Q(effective_to__isnull=True) | Q(effective_to__gt=at)).first()
    old = None if former is None else figures(former)
    if former is not None:
        _end(former, at)
        _audit("price.ended", former, actor, old=old, new=figures(former))
    try:
        with transaction.atomic():
            plan.save(force_insert=True)
    except IntegrityError as exc:
        raise PlansOverlap("These prices would be in force beside others of their list.") from exc
    _audit("price.set", plan, actor, old=old, new=figures(plan))
    return plan


@transaction.atomic
def end_plan(plan_id: int, *, effective_to: datetime | None = None, actor: str) -> PricePlan:
    """Let a plan end (by default now) without a successor: less special lists count then, if any.

    Raises ``PriceRefused`` for an end in the past, or before its beginning.
    """
    plan = _locked_plan(plan_id)
    now = timezone.now()
    end = effective_to or now
    if end < now or end <= plan.effective_from:
        raise PriceRefused("A plan can end from now on, and after it has begun.")
    if plan.effective_to is not None and plan.effective_to < end:
        raise PriceRefused(f"It ends before that, at {_minute(plan.effective_to)}.")
    old = figures(plan)
    _end(plan, end)
    _audit("price.ended", plan, actor, old=old, new=figures(plan))
    return plan


@transaction.atomic
def withdraw_plan(plan_id: int, *, actor: str) -> None:
    """Take back a plan that has not begun; the one before it, if it ended there, goes on.

    Raises ``PriceRefused`` for one that has begun: what was in force stays on record.
    """
    plan = _locked_plan(plan_id)
    if plan.effective_from <= timezone.now():
        raise PriceRefused(f"Plan {plan_id} has begun: end it, or set other prices from now on.")
    old = figures(plan)
    begins, ends = plan.effective_from, plan.effective_to
    plan.delete()
    plan.pk = plan_id
    former = plan.list.plans.filter(effective_to=begins).first()
    if former is not None:
        before = figures(former)
        _end(former, ends)
        _audit("price.extended", former, actor, old=before, new=figures(former))
    _audit("price.withdrawn", plan, actor, old=old, new=None if former is None else figures(former))


def figures(plan: PricePlan) -> dict[str, Any]:
    """What a plan says, for the audit log."""
    return {name: getattr(plan, name) for name in FIGURES}


def _list_of(tenant_id: int | None, model: str) -> PriceList:
    prices = PriceList(tenant_id=tenant_id, model=model)
    try:
        prices.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as exc:
        raise PriceRefused(" ".join(exc.messages)) from exc
    lists = PriceList.objects.filter(model=model)
    lists = lists.filter(tenant_id=tenant_id) if tenant_id else lists.filter(tenant__isnull=True)
    PriceList.objects.bulk_create([prices], ignore_conflicts=True)
    return lists.get()


def _locked_plan(plan_id: int) -> PricePlan:
    plan = PricePlan.objects.select_related("list").filter(pk=plan_id).first()
    if plan is None:
        raise PriceRefused(f"There is no plan {plan_id}.")
    lock_price_list(plan.list_id)
    plan.refresh_from_db()
    return plan


def _end(plan: PricePlan, at: datetime | None) -> None:
    plan.effective_to = at
    plan.save(update_fields=["effective_to"])


def _check_figures(plan: PricePlan) -> None:
    for name in FIGURES:
        if isinstance(getattr(plan, name), float):
            raise TypeError(f"{name} is a float; prices are decimals")
    try:
        plan.full_clean(validate_constraints=False)
    except ValidationError as exc:
        said = (
            f"{name}: {' '.join(messages)}" for name, messages in sorted(exc.message_dict.items())
        )
        raise PriceRefused(" ".join(said)) from exc
    if plan.policy == Policy.INTERRUPT_COMPENSATED and not plan.note.strip():
        raise PriceRefused(
            f"{plan.policy} only where a contract says so: name the contract in the note."
        )


def _check_nothing_settled(prices: PriceList, at: datetime) -> None:
    """Raise ``PriceRefused`` if sessions that began since ``at`` were settled for which the list
    would have counted: with no price, with this list's, or with those of a less special one."""
    settled = UsageRecord.objects.filter(began_at__gte=at)
    special = Q()
    if prices.tenant_id is not None:
        settled = settled.filter(tenant_id=prices.tenant_id)
    else:
        special |= Q(plan__list__tenant_id__isnull=False)
    if prices.model:
        settled = settled.filter(model=prices.model)
    elif prices.tenant_id is not None:
        special |= Q(plan__list__tenant_id__isnull=False) & ~Q(plan__list__model="")
    else:
        special |= ~Q(plan__list__model="")
    if special:
        settled = settled.filter(Q(plan__isnull=True) | ~special)
    first = settled.order_by("began_at").first()
    if first is not None:
        raise PriceRefused(
            f"These prices cannot begin at {_minute(at)}: session {first.session_id}, begun at"
            f" {_minute(first.began_at)}, was settled without them. Set them from now on, and book"
            " an adjustment for what lies before."
        )


def _audit(action: str, plan: PricePlan, actor: str, *, old: Any, new: Any) -> None:
    link = audit.draft_of(
        action,
        plan,
        actor=actor,
        tenant_id=plan.list.tenant_id,
        data={"list": plan.list_id, "model": plan.list.model, "old": old, "new": new},
    )
    audit.append_many([link])


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M %Z}"
