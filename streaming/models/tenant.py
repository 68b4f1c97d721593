"""Who may ask: tenants, their API keys and their model aliases."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

from streaming.conf import conf
from streaming.core.levels import Level
from streaming.core.origins import origins_of
from streaming.core.retention import longer_than_content


class Tenant(models.Model):
    """A customer. Sessions, keys and money belong to exactly one tenant."""

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")],
    )
    display_name = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    content_days = models.PositiveIntegerField(
        null=True, blank=True, help_text="Days that content is kept; empty: CONTENT_DAYS."
    )
    metadata_days = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Days that end users, requests and events are known; empty: METADATA_DAYS.",
    )
    support_sees_content = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether support staff may reveal what this tenant's users ask and are told.",
    )
    allowed_origins = models.JSONField(
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text="Web pages that may embed chat: scheme://host[:port], one a line.",
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of the whole tenant; empty: no limit."
    )
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Delivered ones, of the whole tenant."
    )
    streams_at_once = models.PositiveIntegerField(null=True, blank=True)
    user_requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of each of its end users."
    )
    user_tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    user_streams_at_once = models.PositiveIntegerField(null=True, blank=True)

    def __str__(self) -> str:
        return self.display_name or self.name

    def clean(self) -> None:
        """Raises ``ValidationError`` where metadata would go before content, and for no origins."""
        try:
            self.allowed_origins = origins_of("\n".join(self.allowed_origins))
        except (TypeError, ValueError) as exc:
            raise ValidationError({"allowed_origins": str(exc)}) from exc
        content = conf().content_days if self.content_days is None else self.content_days
        metadata = conf().metadata_days if self.metadata_days is None else self.metadata_days
        if not longer_than_content(content, metadata):
            raise ValidationError(
                {"metadata_days": f"Content is kept for {content} days: not less. 0 is for ever."}
            )


class ApiKey(models.Model):
    """A secret of a tenant; only its SHA-256 is kept (256 random bits need no slow hash)."""

    class OnDisconnect(models.TextChoices):
        # What a session does when its last reader has gone and the grace period is over.
        SUSPEND = "suspend"
        CANCEL = "cancel"
        FINISH = "finish"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=16, db_index=True, help_text="Shown in lists and logs.")
    key_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256, hexadecimal.")
    is_test = models.BooleanField(default=False, help_text="May rehearse faults where allowed.")
    on_disconnect = models.CharField(
        max_length=8, choices=OnDisconnect.choices, default=OnDisconnect.SUSPEND
    )
    level = models.CharField(
        max_length=8,
        choices=[(level.value, level.value) for level in Level],
        default=Level.STANDARD.value,
        db_default=Level.STANDARD.value,
        help_text="Delivery quality of its sessions; a request may ask for a lower one.",
    )
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Delivered ones."
    )
    streams_at_once = models.PositiveIntegerField(null=True, blank=True)
    cost_centre = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        help_text="Statements and exports list usage by it.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    replaced_by = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replaces"
    )

    class Meta:
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.tenant})"

    def is_active(self, now: datetime) -> bool:
        """Whether the key opens anything at ``now``."""
        expired = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not expired


class ModelAlias(models.Model):
    """A name clients may ask for (``chat-default``) and the served model it stands for.

    A tenant's own alias wins over one for all tenants (``tenant`` is null).
    """

    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, null=True, blank=True, related_name="model_aliases"
    )
    alias = models.CharField(max_length=200)
    model = models.CharField(max_length=200)

    class Meta:
        verbose_name_plural = "model aliases"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "alias"], name="alias_once_per_tenant", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.alias} → {self.model}"
