"""Billing accounts: where a tenant's months begin, and what it may use in one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from billing.admin.amounts import AmountField
from billing.admin.figures import amount_cell, count
from billing.admin.pages import SavedByService
from billing.models import BillingAccount
from billing.services import accounts, periods
from streaming.admin.audited import actor_of
from streaming.admin.pages import Tool
from streaming.admin.read_only import EstimatingPaginator
from streaming.admin.tenancy import OfTenant


class AccountForm(forms.ModelForm):
    class Meta:
        model = BillingAccount
        fields = [
            "tenant", "legal_name", "time_zone", "token_limit", "spend_limit", "spend_currency",
            "limits_are_hard",
        ]  # fmt: skip
        widgets = {
            "spend_limit": forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
        }
        field_classes = {"spend_limit": AmountField}
        help_texts = {
            "time_zone": "Like Europe/Berlin. A change counts for months that have not begun.",
            "spend_currency": "Of the limit; amounts in others don’t count towards it.",
        }


@admin.register(BillingAccount)
class BillingAccountAdmin(OfTenant, SavedByService):
    form = AccountForm
    list_display = ["tenant", "legal_name", "time_zone", "tokens", "spend", "limits_are_hard"]
    list_select_related = ["tenant"]
    list_per_page = 50
    show_full_result_count = False
    paginator = EstimatingPaginator
    search_fields = ["^tenant__name", "^legal_name"]
    ordering = ["tenant__name"]
    autocomplete_fields = ["tenant"]
    fieldsets = [
        (None, {"fields": ["tenant", "legal_name", "time_zone"]}),
        (
            "Limits per period (empty: none)",
            {"fields": ["token_limit", "spend_limit", "spend_currency", "limits_are_hard"]},
        ),
    ]
    actions = None

    @admin.display(description="tokens per period", ordering="token_limit")
    def tokens(self, account: BillingAccount) -> str:
        return "no limit" if account.token_limit is None else count(account.token_limit)

    @admin.display(description="spend per period", ordering="spend_limit")
    def spend(self, account: BillingAccount) -> SafeString | str:
        if account.spend_limit is None:
            return "no limit"
        return amount_cell(account.spend_limit, account.spend_currency)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["tenant"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # periods and money hang on it

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor = actor_of(request)
        values = {name: form.cleaned_data[name] for name in form.changed_data if name != "tenant"}
        if zone := values.pop("time_zone", None):
            periods.change_time_zone(obj.tenant_id, zone, actor=actor)
        accounts.change_account(obj.tenant_id, actor=actor, **values)
        for currency in accounts.priced_otherwise(accounts.account_of(obj.tenant_id)):
            messages.warning(
                request, f"There are prices in {currency} too: the limit does not count those."
            )

    def tools(self, request: HttpRequest, obj: BillingAccount) -> list[Tool]:
        found = []
        for model, words in (("billingperiod", "Its periods"), ("quotause", "What it has used")):
            if request.user.has_perm(f"billing.view_{model}"):
                url = reverse(f"admin:billing_{model}_changelist")
                found.append(Tool(words, f"{url}?{urlencode({'q': obj.tenant.name})}"))
        return found
