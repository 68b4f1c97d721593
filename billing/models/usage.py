"""What was used: settlements, their sum per session, and what went to waste."""

from __future__ import annotations

from django.db import models

from billing.models.money import CurrencyField, MoneyField
from billing.models.price import PriceField


class UsageRecord(models.Model):
    """One session: the sum of its settlements, and the figures as of the last one.

    The price is that of the moment in which the session began, and stays. Its row is locked by
    whoever settles the session. Generated tokens are those of
    the log, those discarded, and those regenerated.
    """

    session_id = models.UUIDField(primary_key=True)
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    model = models.CharField(max_length=200)
    cost_centre = models.CharField(max_length=64, blank=True)
    plan = models.ForeignKey(
        "billing.PricePlan", null=True, on_delete=models.PROTECT, related_name="+"
    )
    settlements = models.IntegerField(default=0)
    attempts_told = models.SmallIntegerField(
        default=0, help_text="Interruptions of attempts up to this number are in the audit log."
    )
    events_told = models.BigIntegerField(
        default=0,
        help_text="Those of the session up to this event (SessionEvent.id) are there too.",
    )
    state = models.CharField(max_length=12, blank=True)
    evidence = models.CharField(max_length=8, default="none")
    prompt_tokens = models.IntegerField(default=0, help_text="Charged.")
    cached_tokens = models.IntegerField(default=0, help_text="Of them, at the cached price.")
    log_tokens = models.BigIntegerField(default=0, help_text="Durable; the terminal record apart.")
    sent_tokens = models.BigIntegerField(default=0)
    delivered_tokens = models.BigIntegerField(default=0)
    compensated_tokens = models.BigIntegerField(
        default=0, help_text="What interrupt_compensated would bill."
    )
    billed_tokens = models.BigIntegerField(default=0)
    generated_tokens = models.BigIntegerField(default=0)
    discarded_tokens = models.BigIntegerField(default=0)
    regenerated_tokens = models.BigIntegerField(default=0)
    currency = CurrencyField(blank=True)
    amount = MoneyField(default=0)
    began_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "began_at"], name="usage_by_tenant")]

    def __str__(self) -> str:
        return f"{self.session_id}: {self.billed_tokens} billed"


class Settlement(models.Model):
    """The ``n``-th time that a session was settled: from what was billed before to what is now.

    Append-only. ``output_tokens`` (= ``to_tokens - from_tokens``), ``prompt_tokens`` and ``amount``
    are negative where less had been delivered than was charged. Exactly one ledger entry goes with
    each. The other figures are the session's at that moment.
    """

    class Kind(models.TextChoices):
        # Why it was settled then.
        ENDED = "ended"
        SUSPENDED = "suspended"
        DELIVERED = "delivered"  # evidence that came later
        DENIED = "denied"  # a later cursor showed that less had been delivered

    usage = models.ForeignKey(UsageRecord, on_delete=models.PROTECT, related_name="lines")
    n = models.IntegerField()
    kind = models.CharField(max_length=10, choices=Kind.choices)
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    period = models.ForeignKey(
        "billing.BillingPeriod", on_delete=models.PROTECT, related_name="settlements"
    )
    state = models.CharField(max_length=12)
    cause = models.CharField(max_length=24, blank=True)
    model = models.CharField(max_length=200)
    model_requested = models.CharField(max_length=200)
    cost_centre = models.CharField(max_length=64, blank=True)
    api_key_prefix = models.CharField(max_length=16, blank=True)

    from_tokens = models.BigIntegerField()
    to_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    prompt_tokens = models.IntegerField(help_text="Cached ones included.")
    cached_tokens = models.IntegerField()
    log_tokens = models.BigIntegerField()
    sent_tokens = models.BigIntegerField()
    delivered_tokens = models.BigIntegerField()
    compensated_tokens = models.BigIntegerField()
    evidence = models.CharField(max_length=8)
    generated_tokens = models.BigIntegerField()
    discarded_tokens = models.BigIntegerField()
    regenerated_tokens = models.BigIntegerField()

    policy = models.CharField(max_length=24)
    plan = models.ForeignKey(
        "billing.PricePlan", null=True, on_delete=models.PROTECT, related_name="+"
    )
    input_per_million = PriceField()
    cached_input_per_million = PriceField()
    output_per_million = PriceField()
    coefficient = models.DecimalField(max_digits=10, decimal_places=4)
    currency = CurrencyField()
    amount = MoneyField()
    corrects = models.ForeignKey(
        "self", null=True, on_delete=models.PROTECT, related_name="corrections"
    )
    began_at = models.DateTimeField(help_text="Of the session.")
    occurred_at = models.DateTimeField(help_text="When the tokens were delivered, or denied.")
    settled_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["usage", "n"], name="settled_once"),
            models.CheckConstraint(
                condition=models.Q(output_tokens=models.F("to_tokens") - models.F("from_tokens"))
                & models.Q(from_tokens__gte=0, to_tokens__gte=0),
                name="settlement_covers_its_tokens",
            ),
            models.CheckConstraint(
                condition=models.Q(delivered_tokens__lte=models.F("log_tokens"))
                & models.Q(to_tokens__lte=models.F("log_tokens")),
                name="never_more_than_was_generated",
            ),
        ]
        indexes = [
            models.Index(fields=["period", "id"], name="settlement_by_period"),
            models.Index(  # most are of sessions that ended; the others are looked for
                fields=["kind", "id"], name="settlement_by_kind", condition=~models.Q(kind="ended")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.usage_id} #{self.n}"


class Waste(models.Model):
    """Tokens of a session that were generated and not delivered, by node and cause.

    Replaced with each settlement. ``cost``: at the plan's own cost price, where it has one.
    """

    class Kind(models.TextChoices):
        DISCARDED = (
            "discarded"  # in no log: without text yet, held back, or of an overtaken attempt
        )
        REGENERATED = "regenerated"  # asked for again, and the reader had them
        UNDELIVERED = "undelivered"  # in the log, and no evidence that anybody got them

    usage = models.ForeignKey(UsageRecord, on_delete=models.CASCADE, related_name="waste")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    node_name = models.CharField(max_length=100)
    cause = models.CharField(max_length=24)
    tokens = models.BigIntegerField()
    cost = MoneyField(null=True)
    currency = CurrencyField(blank=True)

    class Meta:
        verbose_name_plural = "waste"
        constraints = [
            models.UniqueConstraint(
                fields=["usage", "kind", "node_name", "cause"], name="waste_counted_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.tokens} {self.kind} on {self.node_name}: {self.cause}"
