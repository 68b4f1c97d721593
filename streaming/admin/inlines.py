"""What a session's page shows of its other tables."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet

from streaming.admin.content import without_words, words
from streaming.admin.evidence import in_words
from streaming.admin.read_only import ReadOnly
from streaming.admin.times import clock, local
from streaming.models import Attempt, SessionEvent, TokenCheckpoint

LATEST = 50


class LatestRows(BaseInlineFormSet):
    """The first ``LATEST`` rows of the inline's order: a session may have thousands."""

    _latest: QuerySet[Any] | None = None

    def get_queryset(self) -> QuerySet[Any]:
        if self._latest is None:
            self._latest = super().get_queryset()[:LATEST]
        return self._latest


class LatestCheckpoints(LatestRows):
    """Those of the session's own partition: no other is looked at."""

    def get_queryset(self) -> QuerySet[Any]:
        if self._latest is None:
            rows = BaseInlineFormSet.get_queryset(self)
            self._latest = rows.filter(expires_on=self.instance.expires_on)[:LATEST]
        return self._latest


class ReadOnlyInline(ReadOnly, admin.TabularInline):
    extra = 0
    formset = LatestRows
    can_delete = False


class AttemptInline(ReadOnlyInline):
    model = Attempt
    ordering = ["number"]
    fields = [
        "number", "node_name", "seam_grade", "tokens", "end_reason", "said", "cause",
        "because", "first_token", "detection", "recovery", "discarded", "started",
    ]  # fmt: skip
    readonly_fields = [
        "tokens", "said", "because", "first_token", "detection", "recovery", "discarded", "started",
    ]  # fmt: skip

    @admin.display
    def tokens(self, row: Attempt) -> str:
        return "-" if row.first_seq is None else f"{row.first_seq}–{row.last_seq}"

    @admin.display(description="what the engine said")
    def said(self, row: Attempt) -> str:
        return words(row.end_detail, getattr(row.session, "revealed", False))

    @admin.display(description="evidence")
    def because(self, row: Attempt) -> str:
        return in_words(without_words(row.evidence))

    @admin.display(description="first token")
    def first_token(self, row: Attempt) -> str:
        return _milliseconds(row.ttft_ms)

    @admin.display
    def detection(self, row: Attempt) -> str:
        return _milliseconds(row.detection_ms)

    @admin.display
    def recovery(self, row: Attempt) -> str:
        return _milliseconds(row.recovery_ms)

    @admin.display
    def discarded(self, row: Attempt) -> int:
        return row.discarded_tokens

    @admin.display
    def started(self, row: Attempt) -> str:
        return clock(row.started_at)


class EventInline(ReadOnlyInline):
    model = SessionEvent
    ordering = ["-id"]
    fields = ["time", "kind", "seq", "data"]
    readonly_fields = ["time"]
    verbose_name_plural = f"events (the latest {LATEST}, newest first)"

    @admin.display(description="at")
    def time(self, row: SessionEvent) -> str:
        return local(row.at, precise=True)


class CheckpointInline(ReadOnlyInline):
    """Without the text, which is content."""

    model = TokenCheckpoint
    formset = LatestCheckpoints
    ordering = ["-first_seq"]
    classes = ["collapse"]
    fields = ["first_seq", "last_seq", "attempt", "epoch", "time"]
    readonly_fields = ["time"]
    verbose_name_plural = f"checkpoints (the latest {LATEST}, newest first)"

    @admin.display(description="durable at")
    def time(self, row: TokenCheckpoint) -> str:
        return local(row.created_at, precise=True)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
