"""Which exports were made, of what, by whom."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from streaming.core.ids import uuid7


class Export(models.Model):
    """One export: its files are in ``DATA_DIR/exports``, its manifest says what they hold."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    period_name = models.CharField(max_length=7)
    tenant = models.ForeignKey(
        "streaming.Tenant", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    format = models.CharField(max_length=10)
    rows = models.BigIntegerField(default=0)
    manifest = models.JSONField(default=dict)
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        permissions = [("export_ledger", "Can export the ledger")]

    def __str__(self) -> str:
        return f"{self.period_name} {self.format}"
