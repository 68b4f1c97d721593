"""Attempts, over all sessions."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.models import Attempt


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin, SearchBySession):
    list_display = [
        "id", "session_link", "number", "node_name", "seam_grade", "end_reason", "first_seq",
        "last_seq", "recovery_ms", "started_at",
    ]  # fmt: skip
    exclude = ["session"]
    readonly_fields = ["session_link"]
