"""The histories of all nodes, those that are gone included."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfFleet
from streaming.models import NodeEvent


@admin.register(NodeEvent)
class NodeEventAdmin(OfFleet, ReadOnlyAdmin):
    list_display = ["id", "node_name", "kind", "data", "at"]
    list_filter = ["kind"]
    search_fields = ["=node_name"]
    fields = ["node_name", "at", "kind", "data"]
