"""What tenants have used of their limits, by period."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from billing.admin.figures import amount_cell, count
from billing.admin.pages import BillingPages
from billing.models import QuotaUse
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant


@admin.register(QuotaUse)
class QuotaUseAdmin(OfTenant, BillingPages, ReadOnlyAdmin):
    tenant_path = "account__tenant_id"
    list_display = [
        "account", "period_name", "used", "token_limit", "reserved", "spent_shown", "spend_limit",
        "reserved_spend_shown",
    ]  # fmt: skip
    list_select_related = ["account__tenant"]
    search_fields = ["^account__tenant__name", "=period_name"]
    ordering = ["-period_name", "account__tenant__name"]
    fields = [
        "account",
        "period_name",
        "used",
        "token_limit",
        "reserved",
        "spent_shown",
        "spend_limit",
        "reserved_spend_shown",
    ]
    readonly_fields = [
        "used", "token_limit", "reserved", "spent_shown", "spend_limit", "reserved_spend_shown",
    ]  # fmt: skip

    @admin.display(description="tokens delivered", ordering="tokens")
    def used(self, use: QuotaUse) -> str:
        return count(use.tokens)

    @admin.display(description="token limit")
    def token_limit(self, use: QuotaUse) -> str:
        limit = use.account.token_limit
        return "no limit" if limit is None else count(limit)

    @admin.display(description="reserved by live sessions")
    def reserved(self, use: QuotaUse) -> str:
        return count(use.reserved_tokens)

    @admin.display(description="spent")
    def spent_shown(self, use: QuotaUse) -> SafeString | str:
        if use.account.spend_limit is None and not use.spent:
            return "-"  # what is spent is only counted against a limit
        return amount_cell(use.spent, use.currency)

    @admin.display(description="spend limit")
    def spend_limit(self, use: QuotaUse) -> SafeString | str:
        account = use.account
        if account.spend_limit is None:
            return "no limit"
        return amount_cell(account.spend_limit, account.spend_currency)

    @admin.display(description="reserved of it")
    def reserved_spend_shown(self, use: QuotaUse) -> SafeString | str:
        if use.account.spend_limit is None and not use.reserved_spend:
            return "-"
        return amount_cell(use.reserved_spend, use.currency)
