"""The ledger: what tenants owe, line by line, never changed."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from billing.core.money import plain
from billing.models.money import CurrencyField, MoneyField
from streaming.core.ids import uuid7


class LedgerEntry(models.Model):
    """One line: exact, unrounded, append-only (triggers refuse everything else).

    A charge is what a settlement came to; a credit takes back (part of) a charge; an adjustment is
    anything else that a person books. Credits and negative adjustments have negative amounts.
    ``correction``: it corrects a line of a period that was closed before.
    """

    class Kind(models.TextChoices):
        CHARGE = "charge"
        CREDIT = "credit"
        ADJUSTMENT = "adjustment"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    period = models.ForeignKey(
        "billing.BillingPeriod", on_delete=models.PROTECT, related_name="entries"
    )
    settlement = models.OneToOneField(
        "billing.Settlement", null=True, on_delete=models.PROTECT, related_name="entry"
    )
    charge = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="credits")
    session_id = models.UUIDField(null=True, db_index=True)
    model = models.CharField(max_length=200, blank=True)
    cost_centre = models.CharField(max_length=64, blank=True)
    currency = CurrencyField()
    amount = MoneyField()
    correction = models.BooleanField(default=False)
    reason = models.CharField(max_length=300, blank=True)
    idempotency_key = models.CharField(max_length=120, unique=True)
    actor = models.CharField(max_length=150, help_text="Who booked it; system: a settlement.")
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            models.CheckConstraint(
                condition=~models.Q(kind="credit")
                | (models.Q(charge__isnull=False, amount__lte=0) & ~models.Q(reason="")),
                name="credit_of_a_charge_with_a_reason",
            ),
            models.CheckConstraint(
                condition=~models.Q(kind="charge") | models.Q(settlement__isnull=False),
                name="charge_of_a_settlement",
            ),
        ]
        indexes = [
            models.Index(fields=["period", "id"], name="ledger_by_period"),
            models.Index(fields=["tenant", "id"], name="ledger_by_tenant"),
            models.Index(  # what is not a charge is rare, and looked for
                fields=["kind", "id"], name="ledger_by_people", condition=~models.Q(kind="charge")
            ),
            models.Index(
                fields=["period"],
                name="ledger_by_hand",
                condition=models.Q(settlement__isnull=True),
            ),
        ]
        permissions = [
            ("book_credit", "Can book credits and adjustments"),
            ("approve_credit", "Can approve large credits of others"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {plain(self.amount)} {self.currency}"

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Ledger entries cannot be deleted.")


class CreditRequest(models.Model):
    """A credit or adjustment that is large enough to need a second person."""

    class Decision(models.TextChoices):
        PENDING = "pending"
        APPROVED = "approved"
        REFUSED = "refused"

    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    charge = models.ForeignKey(
        LedgerEntry, null=True, on_delete=models.PROTECT, related_name="credit_requests"
    )
    currency = CurrencyField()
    amount = MoneyField(help_text="As it will be booked: of a credit, negative.")
    reason = models.CharField(max_length=300)
    idempotency_key = models.CharField(max_length=120, unique=True, editable=False)
    requested_by = models.CharField(max_length=150)
    requested_at = models.DateTimeField()
    decision = models.CharField(max_length=10, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.CharField(max_length=150, blank=True)
    decided_at = models.DateTimeField(null=True)
    entry = models.OneToOneField(
        LedgerEntry, null=True, on_delete=models.PROTECT, related_name="request"
    )

    def __str__(self) -> str:
        return f"{plain(self.amount)} {self.currency} ({self.decision})"
