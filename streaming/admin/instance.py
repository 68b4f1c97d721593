"""Gateway processes, living and past."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfFleet
from streaming.models import GatewayInstance


@admin.register(GatewayInstance)
class GatewayInstanceAdmin(OfFleet, ReadOnlyAdmin):
    list_display = [
        "id",
        "hostname",
        "pid",
        "started_at",
        "heartbeat_at",
        "stopped_at",
        "node_streams",
    ]
