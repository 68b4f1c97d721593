"""What streaming has announced to billing."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfFleet
from streaming.models import OutboxMessage


@admin.register(OutboxMessage)
class OutboxMessageAdmin(OfFleet, ReadOnlyAdmin, SearchBySession):
    list_display = ["id", "session_link", "kind", "created_at", "handled_at"]
    list_filter = [("handled_at", admin.EmptyFieldListFilter)]
    fields = ["session_link", "kind", "data", "created_at", "handled_at"]
    readonly_fields = ["session_link"]
