"""Credits for all sessions of an incident at once."""

from __future__ import annotations

from django.db import models

from billing.core.money import plain
from billing.models.ledger import LedgerEntry
from billing.models.money import CurrencyField, MoneyField


class BulkCredit(models.Model):
    """What somebody gives back of every charge of an incident's sessions; its lines say how much.

    They are fixed when it is made: what a second person approves is what is booked.
    """

    class Which(models.TextChoices):
        # Of the sessions that the incident has hit.
        ALL = "all", "all sessions"
        NOTICED = "noticed", "sessions whose readers noticed"
        LOST = "lost", "sessions that were lost"

    class State(models.TextChoices):
        WAITING = "waiting", "waits for a second person"
        BOOKING = "booking", "is being booked"
        DONE = "done", "booked"
        REFUSED = "refused"

    incident = models.ForeignKey(
        "streaming.Incident", on_delete=models.DO_NOTHING, db_constraint=False,
        related_name="bulk_credits",
    )  # fmt: skip
    which = models.CharField(max_length=8, choices=Which.choices)
    percent = models.DecimalField(
        max_digits=5, decimal_places=2, help_text="Of what was left of each charge."
    )
    reason = models.CharField(max_length=300)
    state = models.CharField(max_length=8, choices=State.choices)
    requested_by = models.CharField(max_length=150)
    requested_at = models.DateTimeField()
    decided_by = models.CharField(
        max_length=150, blank=True, help_text="The second person; empty: nobody has, or need."
    )
    decided_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["id"],
                name="bulk_credit_to_book",
                condition=models.Q(state="booking"),
            )
        ]

    def __str__(self) -> str:
        return f"bulk credit {self.pk} ({self.state})"


class BulkCreditLine(models.Model):
    """One charge that a bulk credit gives back of. ``amount`` is above 0; of one that was booked the
    entry has what it came to. ``note``: why less than that, or nothing, could be given back."""

    bulk = models.ForeignKey(BulkCredit, on_delete=models.PROTECT, related_name="lines")
    charge = models.ForeignKey(LedgerEntry, on_delete=models.PROTECT, related_name="bulk_lines")
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    currency = CurrencyField()
    amount = MoneyField()
    settled = models.BooleanField(default=False, db_default=False)
    entry = models.OneToOneField(
        LedgerEntry, null=True, on_delete=models.PROTECT, related_name="bulk_line"
    )
    note = models.CharField(max_length=100, blank=True, db_default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bulk", "charge"], name="bulk_charge_once")]
        indexes = [
            models.Index(
                fields=["bulk", "tenant", "id"],
                name="bulk_line_to_book",
                condition=models.Q(settled=False),
            )
        ]

    def __str__(self) -> str:
        return f"{plain(self.amount)} {self.currency}"
