"""The time lines of all sessions."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfSession
from streaming.models import SessionEvent


@admin.register(SessionEvent)
class SessionEventAdmin(OfSession, ReadOnlyAdmin, SearchBySession):
    list_display = ["id", "session_link", "kind", "seq", "at"]
    fields = ["session_link", "at", "kind", "seq", "data"]
    readonly_fields = ["session_link"]
