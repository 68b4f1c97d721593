"""Months, as each tenant counts them."""

from __future__ import annotations

from django.db import models

from billing.core.money import plain
from billing.models.money import CurrencyField, MoneyField


class BillingPeriod(models.Model):
    """One month of a tenant, by the time zone that it had when the period began.

    Ledger lines are added while it is open (they hold its row ``FOR KEY SHARE``); ``close_period``
    takes the row for itself, so nothing slips in beside it.
    """

    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=7, help_text="Like 2026-11.")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="Exclusive.")
    time_zone = models.CharField(max_length=64)
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, blank=True)
    checklist = models.JSONField(default=dict, help_text="What was found when it was closed.")
    account_name = models.CharField(
        max_length=200, blank=True, help_text="As the account was called when it was closed."
    )
    issuer = models.CharField(max_length=200, blank=True, help_text="Who billed it then.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="one_period_of_a_name"),
            models.UniqueConstraint(fields=["tenant", "starts_at"], name="one_period_at_a_time"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.name}"


class PeriodTotal(models.Model):
    """What a closed period comes to in one currency: the only place where money is rounded."""

    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="totals")
    currency = CurrencyField()
    lines = models.BigIntegerField()
    exact = MoneyField()
    rounded = MoneyField()
    rule = models.CharField(max_length=40)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["period", "currency"], name="one_total_a_currency")
        ]

    def __str__(self) -> str:
        return f"{self.period}: {plain(self.rounded)} {self.currency}"
