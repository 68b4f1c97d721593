"""Tenants."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest

from streaming.admin.audited import AuditedAdmin
from streaming.admin.end_users import WithEndUsers
from streaming.admin.tenancy import OfTenant, is_limited
from streaming.models import Tenant
from streaming.services.partitions import make_partitions


@admin.register(Tenant)
class TenantAdmin(OfTenant, WithEndUsers, AuditedAdmin):
    tenant_path = "pk"
    audited_as = "tenant"
    told = ("content_days", "metadata_days")
    list_display = ["name", "display_name", "created_at"]
    search_fields = ["name", "display_name"]
    ordering = ["name"]
    fields = ["name", "display_name", "content_days", "metadata_days", "created_at"]
    readonly_fields = ["created_at"]

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        # The first sessions with other days begin before the next task does.
        transaction.on_commit(make_partitions)

    def audit_subject(self, obj: Tenant) -> tuple[str, int | None]:
        return f"tenant:{obj.name}", obj.pk

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> Any:
        # Commands, logs and exports know a tenant by its name.
        return [*self.readonly_fields, "name"] if obj else self.readonly_fields

    def has_add_permission(self, request: HttpRequest) -> bool:
        return not is_limited(request.user) and super().has_add_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # sessions and money hang on it: revoke its keys instead
