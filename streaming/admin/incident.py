"""Incidents: opened and closed by the machine, read by people."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfFleet
from streaming.models import Incident


class Open(admin.SimpleListFilter):
    """Whether it goes on."""

    title = "state"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Open"), ("no", "Closed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(closed_at__isnull=self.value() == "yes")


@admin.register(Incident)
class IncidentAdmin(OfFleet, ReadOnlyAdmin):
    list_display = ["id", "kind", "subject", "node", "opened_at", "closed_at"]
    list_select_related = ["node"]
    list_filter = [Open, "kind"]
    fields = ["kind", "subject", "node", "session_id", "opened_at", "closed_at", "data"]
