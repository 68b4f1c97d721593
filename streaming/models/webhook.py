"""Webhooks: where a tenant wants to be told what happened to its sessions."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from streaming.core.ids import uuid7


class WebhookEndpoint(models.Model):
    """An address of a tenant. Its secret is derived (``services.webhooks``), never stored."""

    tenant = models.ForeignKey(
        "streaming.Tenant", on_delete=models.CASCADE, related_name="webhooks"
    )
    url = models.URLField(max_length=500)
    events = models.JSONField(default=list, help_text="Kinds of events; empty: all.")
    secret_version = models.PositiveIntegerField(default=1)
    rotated_at = models.DateTimeField(
        null=True, blank=True, help_text="For a day the former secret signs, too."
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)
    failing_since = models.DateTimeField(null=True, blank=True)
    retry_at = models.DateTimeField(null=True, blank=True, help_text="Until then it is left alone.")
    disabled_reason = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return self.url


class WebhookDelivery(models.Model):
    """One event for one endpoint, and how its delivery goes; ``id`` is what receivers deduplicate by.

    Rows are added by a function of the database (``migrations.0005_webhooks``), in the transaction of
    what they tell of.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        DELIVERED = "delivered"
        GIVEN_UP = "given_up"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # No constraint: the journal adds rows, and waits for nobody who removes an endpoint.
    endpoint = models.ForeignKey(
        WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries", db_constraint=False
    )
    kind = models.CharField(max_length=40)
    session_id = models.UUIDField(null=True, blank=True)
    payload = models.JSONField()
    state = models.CharField(max_length=9, choices=State.choices, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    next_try_at = models.DateTimeField(default=timezone.now)
    delivered_at = models.DateTimeField(null=True, blank=True)
    response_status = models.PositiveSmallIntegerField(null=True, blank=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint", "kind", "session_id"],
                condition=models.Q(session_id__isnull=False),
                name="webhook_once",
            )
        ]
        indexes = [
            models.Index(
                fields=["endpoint", "next_try_at"],
                name="webhook_due",
                condition=models.Q(state="waiting"),
            ),
            models.Index(fields=["endpoint", "-created_at"], name="webhook_newest"),
            models.Index(fields=["-created_at"], name="webhook_log"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
