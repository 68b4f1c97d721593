"""Attempts, over all sessions."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.evidence import ByCause, in_words
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.models import Attempt


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin, SearchBySession):
    list_display = [
        "id", "session_link", "number", "node_name", "seam_grade", "end_reason", "cause",
        "first_seq", "last_seq", "recovery_ms", "started_at",
    ]  # fmt: skip
    list_filter = [ByCause]
    exclude = ["session", "evidence"]
    readonly_fields = ["session_link", "because"]

    @admin.display(description="evidence")
    def because(self, attempt: Attempt) -> str:
        return in_words(attempt.evidence)
