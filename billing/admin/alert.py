"""What tenants were told of their limits."""

from __future__ import annotations

from django.contrib import admin

from billing.admin.pages import BillingPages
from billing.models import BudgetAlert
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant


@admin.register(BudgetAlert)
class BudgetAlertAdmin(OfTenant, BillingPages, ReadOnlyAdmin):
    tenant_path = "account__tenant_id"
    list_display = ["at", "account", "period_name", "percent", "measure"]
    list_select_related = ["account__tenant"]
    search_fields = ["^account__tenant__name", "=period_name"]
    fields = ["at", "account", "period_name", "percent", "measure"]
    readonly_fields = ["percent"]

    @admin.display(description="reached", ordering="threshold")
    def percent(self, alert: BudgetAlert) -> str:
        return f"{alert.threshold} %"
