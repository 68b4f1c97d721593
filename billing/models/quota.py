"""What a tenant has used of its limits, and what live sessions have reserved."""

from __future__ import annotations

from django.db import models

from billing.models.money import CurrencyField, MoneyField


class QuotaUse(models.Model):
    """Of one account in one period. Tokens are delivered ones; ``reserved`` is of live sessions."""

    account = models.ForeignKey(
        "billing.BillingAccount", on_delete=models.CASCADE, related_name="uses"
    )
    period_name = models.CharField(max_length=7)
    tokens = models.BigIntegerField(default=0)
    reserved_tokens = models.BigIntegerField(default=0)
    spent = MoneyField(default=0, db_default=0)
    reserved_spend = MoneyField(default=0, db_default=0)
    currency = CurrencyField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["account", "period_name"], name="one_use_a_period")
        ]

    def __str__(self) -> str:
        return f"{self.account}: {self.period_name}"


class QuotaReservation(models.Model):
    """What one session may come to; released when it is settled for the first time."""

    session_id = models.UUIDField(primary_key=True)
    use = models.ForeignKey(QuotaUse, on_delete=models.CASCADE, related_name="reservations")
    tokens = models.BigIntegerField()
    spend = MoneyField(default=0, db_default=0)
    created_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.session_id}: {self.tokens}"


class BudgetAlert(models.Model):
    """A tenant has reached ``threshold`` percent of a limit; told once a period."""

    class Measure(models.TextChoices):
        TOKENS = "tokens"
        SPEND = "spend"

    account = models.ForeignKey(
        "billing.BillingAccount", on_delete=models.CASCADE, related_name="alerts"
    )
    period_name = models.CharField(max_length=7)
    measure = models.CharField(max_length=6, choices=Measure.choices)
    threshold = models.SmallIntegerField()
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["account", "period_name", "measure", "threshold"], name="alerted_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.account}: {self.threshold} % of {self.measure} in {self.period_name}"
