"""Attempts, over all sessions."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.content import without_words
from streaming.admin.evidence import ByCause, in_words
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfSession
from streaming.models import Attempt


@admin.register(Attempt)
class AttemptAdmin(OfSession, ReadOnlyAdmin, SearchBySession):
    """Without the engine's words, which may quote content: the page of the session has them."""

    list_display = [
        "id", "session_link", "number", "node_name", "seam_grade", "end_reason", "cause",
        "first_seq", "last_seq", "recovery_ms", "started_at",
    ]  # fmt: skip
    list_filter = [ByCause]
    exclude = ["session", "evidence", "end_detail"]
    readonly_fields = ["session_link", "because"]

    @admin.display(description="evidence")
    def because(self, attempt: Attempt) -> str:
        return in_words(without_words(attempt.evidence))
