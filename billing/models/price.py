"""What tokens cost: price lists, and the plans that follow each other in one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from billing.core.money import COEFFICIENT_PLACES, PRICE_PLACES
from billing.core.policy import Policy
from billing.models.money import CurrencyField

NOT_NEGATIVE = [MinValueValidator(Decimal(0))]


class PriceField(models.DecimalField):
    """Per million tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_digits"] = 20
        kwargs["decimal_places"] = PRICE_PLACES
        kwargs.setdefault("validators", NOT_NEGATIVE)
        super().__init__(*args, **kwargs)


class PriceList(models.Model):
    """Whose prices for what. Without a tenant: everybody's; without a model: every model's.

    The most special list with a plan in force counts: tenant and model, tenant, model, neither.
    """

    tenant = models.ForeignKey(
        "streaming.Tenant", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    model = models.CharField(max_length=200, blank=True, help_text="A served model; empty: all.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "model"], name="one_price_list", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.tenant or 'everybody'}: {self.model or 'every model'}"


class PricePlan(models.Model):
    """The prices of a list from one moment to another; ``effective_to`` is exclusive.

    No two plans of a list overlap (an exclusion constraint, see the migration), and of a saved one
    only its end may be set: a change of price is a new plan.
    """

    list = models.ForeignKey(PriceList, on_delete=models.PROTECT, related_name="plans")
    effective_from = models.DateTimeField(default=timezone.now)
    effective_to = models.DateTimeField(null=True, blank=True)
    currency = CurrencyField()
    input_per_million = PriceField()
    cached_input_per_million = PriceField()
    output_per_million = PriceField()
    cost_per_million = PriceField(
        null=True,
        blank=True,
        help_text="What a generated token costs ourselves: the price of waste.",
    )
    coefficient = models.DecimalField(
        max_digits=10,
        decimal_places=COEFFICIENT_PLACES,
        default=Decimal(1),
        validators=NOT_NEGATIVE,
        help_text="Every amount is multiplied by it.",
    )
    policy = models.CharField(
        max_length=24,
        choices=[(policy.value, policy.value) for policy in Policy],
        default=Policy.DELIVERED.value,
        help_text="interrupt_compensated only where a contract says so.",
    )
    note = models.CharField(max_length=300, blank=True)
    created_by = models.CharField(max_length=150, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(effective_to__isnull=True)
                | models.Q(effective_to__gt=models.F("effective_from")),
                name="plan_ends_after_its_start",
            )
        ]

    def __str__(self) -> str:
        return f"{self.list} from {self.effective_from:%Y-%m-%d %H:%M}"
