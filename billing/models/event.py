"""Usage events on their way to others."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class UsageSink(models.Model):
    """Where usage events go: a collector, or a tenant's own webhook.

    ``credential`` refers to a secret (``env:NAME`` or ``file:/path``). A webhook's signing secret is
    derived from SECRET_KEY, the sink and ``secret_version``, so it is stored nowhere.
    """

    class Kind(models.TextChoices):
        WEBHOOK = "webhook"  # CloudEvents, signed
        OPENMETER = "openmeter"
        LAGO = "lago"
        STRIPE = "stripe"

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.WEBHOOK)
    tenant = models.ForeignKey(
        "streaming.Tenant",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Empty: the events of all tenants.",
    )
    url = models.URLField(max_length=500)
    credential = models.CharField(max_length=200, blank=True)
    secret_version = models.PositiveIntegerField(default=1)
    options = models.JSONField(
        default=dict, blank=True, help_text="What its kind needs to know: see docs/usage-events.md."
    )
    enabled = models.BooleanField(default=True)
    failing_since = models.DateTimeField(
        null=True, editable=False, help_text="It has taken nothing since."
    )
    retry_at = models.DateTimeField(
        null=True, editable=False, help_text="It is left alone until then."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return self.name


class EventDelivery(models.Model):
    """One event for one sink; ``event_id`` is the same however often it is sent."""

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"  # given up

    sink = models.ForeignKey(UsageSink, on_delete=models.CASCADE, related_name="deliveries")
    event_id = models.CharField(max_length=120)
    type = models.CharField(max_length=60)
    body = models.TextField(help_text="The CloudEvent, as JSON.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.SmallIntegerField(default=0)
    next_at = models.DateTimeField(default=timezone.now)
    answered = models.CharField(max_length=300, blank=True, help_text="What the last try came to.")
    created_at = models.DateTimeField(default=timezone.now)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "event deliveries"
        constraints = [models.UniqueConstraint(fields=["sink", "event_id"], name="event_told_once")]
        indexes = [
            models.Index(
                fields=["sink", "id"],
                name="delivery_waiting",
                condition=models.Q(state="pending"),
            ),
            models.Index(fields=["id"], name="delivery_failed", condition=models.Q(state="failed")),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.sink}"
