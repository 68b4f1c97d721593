"""What the support desk writes, and what it waits for."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from streaming.models.session import StreamSession


class InterruptedSession(StreamSession):
    """A session that the support desk lists; who may see sessions may see these."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "interrupted session"


class FlaggedSession(StreamSession):
    """A session in which content rules have found something that somebody has to look at."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "flagged session"


class SessionReview(models.Model):
    """Who looks into a session, and what they found. Whether at all is ``StreamSession.review``."""

    session = models.OneToOneField(
        "streaming.StreamSession", primary_key=True, on_delete=models.CASCADE, db_constraint=False,
        related_name="looked_into",
    )  # fmt: skip
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True,
        related_name="reviews",
    )  # fmt: skip
    note = models.TextField(blank=True, max_length=4000)
    ticket = models.CharField(max_length=64, blank=True)
    reviewed_by = models.CharField(max_length=150, blank=True, help_text="An actor: user:alice.")
    reviewed_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"review of {self.session_id}"


class ChangedSession(models.Model):
    """A session whose course has changed since it was last explained; rows are added by triggers.

    Append-only, and no row stands for more than one change: who adds one waits for nobody.
    """

    session_id = models.UUIDField()
    at = models.DateTimeField(db_default=Now(), help_text="It is not looked at before.")

    def __str__(self) -> str:
        return str(self.session_id)


class TenantMember(models.Model):
    """A member of staff who sees this tenant, where they do not see all (``all_tenants``)."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tenant_memberships"
    )
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.CASCADE, related_name="members")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="member_once")]

    def __str__(self) -> str:
        return f"{self.user} of {self.tenant}"
