"""What a session's page shows of its other tables."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet

from streaming.admin.read_only import ReadOnly
from streaming.models import Attempt, SessionEvent, TokenCheckpoint

LATEST = 50


class LatestRows(BaseInlineFormSet):
    """The first ``LATEST`` rows of the inline's order: a session may have thousands."""

    _latest: QuerySet[Any] | None = None

    def get_queryset(self) -> QuerySet[Any]:
        if self._latest is None:
            self._latest = super().get_queryset()[:LATEST]
        return self._latest


class ReadOnlyInline(ReadOnly, admin.TabularInline):
    extra = 0
    formset = LatestRows
    can_delete = False


class AttemptInline(ReadOnlyInline):
    model = Attempt
    ordering = ["number"]
    fields = [
        "number", "node_name", "seam_grade", "first_seq", "last_seq", "end_reason", "end_detail",
        "ttft_ms", "detection_ms", "recovery_ms", "discarded_tokens", "started_at", "ended_at",
    ]  # fmt: skip


class EventInline(ReadOnlyInline):
    model = SessionEvent
    ordering = ["-id"]
    fields = ["at", "kind", "seq", "data"]
    verbose_name_plural = f"events (the latest {LATEST}, newest first)"


class CheckpointInline(ReadOnlyInline):
    """Without the text, which is content."""

    model = TokenCheckpoint
    ordering = ["-first_seq"]
    fields = ["first_seq", "last_seq", "attempt", "epoch", "created_at"]
    verbose_name_plural = f"checkpoints (the latest {LATEST}, newest first)"
