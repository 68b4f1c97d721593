"""Tenants."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest
from django.utils.html import format_html_join

from streaming.admin.audited import AuditedAdmin, actor_of
from streaming.admin.end_users import WithEndUsers
from streaming.admin.origins import OriginsField
from streaming.admin.tenancy import LimitedChoices, OfTenant, is_limited
from streaming.models import Tenant, TenantMember
from streaming.services.limit_figures import limits_in_use
from streaming.services.members import note_member
from streaming.services.partitions import make_partitions


class MemberInline(LimitedChoices, admin.TabularInline):
    """Staff who see this tenant, where they do not see all of them."""

    model = TenantMember
    extra = 0
    autocomplete_fields = ["user"]
    verbose_name_plural = "staff who see it, besides those who see all tenants"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # somebody else would be another member


LIMITS = (
    "requests_per_minute", "tokens_per_minute", "streams_at_once",
    "user_requests_per_minute", "user_tokens_per_minute", "user_streams_at_once",
)  # fmt: skip


class TenantForm(forms.ModelForm):
    allowed_origins = OriginsField(
        required=False, help_text=Tenant._meta.get_field("allowed_origins").help_text
    )


@admin.register(Tenant)
class TenantAdmin(OfTenant, WithEndUsers, AuditedAdmin):
    tenant_path = "pk"
    audited_as = "tenant"
    form = TenantForm
    told = (
        "content_days", "metadata_days", "support_sees_content", "allowed_origins", *LIMITS,
    )  # fmt: skip
    list_display = ["name", "display_name", "created_at"]
    search_fields = ["name", "display_name"]
    ordering = ["name"]
    fields = [
        "name", "display_name", "content_days", "metadata_days", "support_sees_content",
        "allowed_origins", *LIMITS, "limits_in_use", "created_at",
    ]  # fmt: skip
    readonly_fields = ["limits_in_use", "created_at"]
    inlines = [MemberInline]

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        # The first sessions with other days begin before the next task does.
        transaction.on_commit(make_partitions)

    @admin.display(description="in use now")
    def limits_in_use(self, tenant: Tenant) -> str:
        """Of the tenant and its keys, as ``manage.py limits`` tells it."""
        if tenant.pk is None:
            return "-"
        uses = limits_in_use(tenant)
        if uses is None:
            return "Redis cannot be asked."
        return (
            format_html_join("", "<div>{}: {}</div>", ((use.name, use.words) for use in uses))
            or "Nothing is limited."
        )

    def audit_subject(self, obj: Tenant) -> tuple[str, int | None]:
        return f"tenant:{obj.name}", obj.pk

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> Any:
        # Commands, logs and exports know a tenant by its name.
        return [*self.readonly_fields, "name"] if obj else self.readonly_fields

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        super().save_formset(request, form, formset, change)
        for did, rows in (("given", formset.new_objects), ("taken", formset.deleted_objects)):
            for row in rows:
                note_member(row, did, by=actor_of(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return not is_limited(request.user) and super().has_add_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # sessions and money hang on it: revoke its keys instead
