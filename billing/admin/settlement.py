"""Settlements, over all sessions."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from billing.admin.figures import (
    amount_cell,
    bill_link,
    bill_page,
    count,
    link_to,
    money,
    short_bill_link,
)
from billing.admin.filters import ByPeriod, BySettlementKind, ByTenant, WithRowFilters
from billing.admin.pages import BillingPages
from billing.core.money import plain
from billing.models import Settlement
from streaming.admin.pages import Tool
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local


@admin.register(Settlement)
class SettlementAdmin(OfTenant, WithRowFilters, BillingPages, SearchBySession, ReadOnlyAdmin):
    session_column = "usage_id"
    list_display = [
        "settled", "n", "kind", "tenant", "model", "short_session", "output", "prompt", "evidence", "exact",
    ]  # fmt: skip
    list_display_links = ["settled", "n"]
    list_select_related = ["tenant", "period"]
    list_filter = [BySettlementKind, ByTenant, ByPeriod]
    search_fields = ["usage_id"]
    fieldsets = [
        (None, {"fields": ["session", "n", "kind", ("state", "cause"), "evidence"]}),
        ("Whose and when", {"fields": [
            "tenant", "api_key_prefix", "cost_centre", ("model", "model_requested"), "period",
            ("began_at", "occurred_at", "settled_at"),
        ]}),
        ("What it charges", {"fields": [
            ("from_tokens", "to_tokens", "output_tokens"), ("prompt_tokens", "cached_tokens"),
            "exact", "entry_shown", "corrects_shown",
        ]}),
        ("The session at that moment", {"fields": [
            ("log_tokens", "sent_tokens", "delivered_tokens", "compensated_tokens"),
            ("generated_tokens", "discarded_tokens", "regenerated_tokens"),
        ]}),
        ("The prices", {"fields": [
            "policy", "plan_shown", ("input_price", "cached_input_price", "output_price"),
            "multiplied_by",
        ]}),
    ]  # fmt: skip
    readonly_fields = [
        "session", "exact", "entry_shown", "corrects_shown", "plan_shown", "input_price",
        "cached_input_price", "output_price", "multiplied_by",
    ]  # fmt: skip

    @admin.display(description="settled", ordering="pk")
    def settled(self, row: Settlement) -> str:
        return local(row.settled_at)

    @admin.display(description="session")
    def short_session(self, row: Settlement) -> SafeString | str:
        return short_bill_link(row.usage_id)

    @admin.display
    def session(self, row: Settlement) -> SafeString | str:
        return bill_link(row.usage_id)

    @admin.display(description="output tokens")
    def output(self, row: Settlement) -> str:
        return count(row.output_tokens)

    @admin.display(description="prompt tokens")
    def prompt(self, row: Settlement) -> str:
        return count(row.prompt_tokens)

    @admin.display(description="amount")
    def exact(self, row: Settlement) -> SafeString:
        return amount_cell(row.amount, row.currency)

    @admin.display(description="ledger line")
    def entry_shown(self, row: Settlement) -> SafeString | str:
        return link_to(getattr(row, "entry", None))

    @admin.display(description="gives back what was charged by")
    def corrects_shown(self, row: Settlement) -> SafeString | str:
        return link_to(row.corrects)

    @admin.display(description="plan")
    def plan_shown(self, row: Settlement) -> SafeString | str:
        return link_to(row.plan.list, row.plan) if row.plan else "no plan covered it"

    @admin.display(description="input per million")
    def input_price(self, row: Settlement) -> str:
        return money(row.input_per_million, row.currency)

    @admin.display(description="cached input per million")
    def cached_input_price(self, row: Settlement) -> str:
        return money(row.cached_input_per_million, row.currency)

    @admin.display(description="output per million")
    def output_price(self, row: Settlement) -> str:
        return money(row.output_per_million, row.currency)

    @admin.display(description="coefficient")
    def multiplied_by(self, row: Settlement) -> str:
        return plain(row.coefficient)

    def tools(self, request: HttpRequest, obj: Settlement) -> list[Tool]:
        return [Tool("Bill of the session", bill_page(obj.usage_id))]
