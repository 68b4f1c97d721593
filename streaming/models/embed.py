"""Embed tokens: what a product's backend mints for one end user's browser."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.utils import timezone

from streaming.core.ids import uuid7
from streaming.core.levels import Level


class EmbedToken(models.Model):
    """One end user's way in for a short while; the browser holds its signed id and nothing else.

    What it may do stands here, where the browser can neither see nor change it. Rows of tokens that
    are over are removed after a while.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(
        "streaming.Tenant", on_delete=models.CASCADE, related_name="embed_tokens"
    )
    api_key = models.ForeignKey(
        "streaming.ApiKey", on_delete=models.CASCADE, related_name="embed_tokens",
        help_text="With which it was minted: revoking that key ends it too.",
    )  # fmt: skip
    end_user = models.CharField(max_length=128)
    origin = models.CharField(
        max_length=255, blank=True, help_text="Where it is good; empty: all origins of its tenant."
    )
    models_allowed = models.JSONField(default=list, blank=True, help_text="Empty: all.")
    preset = models.JSONField(
        default=dict,
        blank=True,
        help_text="Parameters of its requests that the browser cannot set.",
    )
    level = models.CharField(max_length=8, blank=True, choices=[(o.value, o.value) for o in Level])
    variant = models.CharField(max_length=32, blank=True)
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    streams_at_once = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-created_at"], name="embed_newest")]

    def __str__(self) -> str:
        return str(self.id)

    def is_active(self, now: datetime) -> bool:
        """Whether it opens anything at ``now``."""
        return self.revoked_at is None and self.expires_at > now
