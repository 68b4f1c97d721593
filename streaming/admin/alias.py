"""Model aliases."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.audited import AuditedAdmin
from streaming.admin.tenancy import OfTenant
from streaming.models import ModelAlias


@admin.register(ModelAlias)
class ModelAliasAdmin(OfTenant, AuditedAdmin):
    audited_as = "alias"
    told = ("model",)
    list_display = ["alias", "model", "for_whom"]
    list_select_related = ["tenant"]
    search_fields = ["^alias", "^model", "^tenant__name"]
    autocomplete_fields = ["tenant"]
    ordering = ["alias", "tenant__name"]

    def audit_subject(self, obj: ModelAlias) -> tuple[str, int | None]:
        return f"alias:{obj.alias}", obj.tenant_id

    @admin.display(description="tenant", ordering="tenant__name", empty_value="all tenants")
    def for_whom(self, row: ModelAlias) -> str | None:
        return row.tenant.name if row.tenant else None
