"""The time line of a session, and the outbox towards billing."""

from __future__ import annotations

from django.db import models


class SessionEvent(models.Model):
    """Something that happened to a session; append-only."""

    session = models.ForeignKey(
        "streaming.StreamSession",
        on_delete=models.CASCADE,
        related_name="events",
        db_constraint=False,
        db_index=False,
    )
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    seq = models.BigIntegerField(help_text="The last token of the log at that moment.")
    data = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(fields=["session", "id"], name="event_time_line")]

    def __str__(self) -> str:
        return f"{self.kind} at {self.seq}"


class OutboxMessage(models.Model):
    """What billing has to hear of, announced in the transaction in which it happened.

    Billing reads these; streaming never imports billing.
    """

    class Kind(models.TextChoices):
        SESSION_ENDED = "session_ended"
        SESSION_SUSPENDED = "session_suspended"
        SESSION_DELIVERED = "session_delivered"  # evidence came after that
        AUDIT = "audit"  # somebody did something: ``data`` is for the audit log

    session_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=40, choices=Kind.choices)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    handled_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["id"], name="outbox_waiting", condition=models.Q(handled_at__isnull=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.session_id}"
