"""Usage by session; the page of one is its whole bill."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.admin.audit import facts_of
from billing.admin.figures import SHORT_ID, amount_cell, count, link_to, money, session_page
from billing.admin.filters import ByTenant, WithRowFilters
from billing.admin.pages import BillingPages
from billing.core.money import plain
from billing.models import AuditEntry, Settlement, UsageRecord
from billing.services import bills
from streaming.admin.pages import Tool
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfTenant, is_limited
from streaming.admin.times import local

LATEST = 50

EVIDENCE = {
    "none": "nothing says that a reader got it",
    "socket": "the reader’s system took it, as far as the socket told",
    "cursor": "the reader came back and named it",
    "ack": "the reader said that it has it",
}


@admin.register(UsageRecord)
class UsageRecordAdmin(OfTenant, WithRowFilters, BillingPages, SearchBySession, ReadOnlyAdmin):
    change_form_template = "admin/billing/bill.html"
    list_display = [
        "session", "began", "tenant", "model", "state", "delivered", "billed", "evidence", "exact",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = [ByTenant]
    fields = ()

    @admin.display(description="session", ordering="pk")
    def session(self, row: UsageRecord) -> SafeString:
        return format_html(
            '<span class="billing-id" title="{}">{}…</span>', row.pk, str(row.pk)[:SHORT_ID]
        )

    @admin.display(description="began")
    def began(self, row: UsageRecord) -> str:
        return local(row.began_at)

    @admin.display
    def delivered(self, row: UsageRecord) -> str:
        return count(row.delivered_tokens)

    @admin.display
    def billed(self, row: UsageRecord) -> str:
        return count(row.billed_tokens)

    @admin.display(description="amount")
    def exact(self, row: UsageRecord) -> SafeString:
        return amount_cell(row.amount, row.currency)

    def tools(self, request: HttpRequest, obj: UsageRecord) -> list[Tool]:
        return [Tool("The session", session_page(obj.pk))]

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            context.update(_shown(bills.bill_of(obj.pk)))
            if is_limited(request.user):  # what we pay ourselves is nothing for a customer
                context.update(waste=None)
            if request.user.has_perm("billing.view_auditentry"):
                entries = AuditEntry.objects.filter(session_id=obj.pk).order_by("-seq")
                audit = [(entry, facts_of(entry)) for entry in entries[:LATEST]]
                context.update(audit=audit, latest=LATEST)
        return super().render_change_form(request, context, add, change, form_url, obj)


def _shown(bill: bills.Bill) -> dict[str, Any]:
    """For the template: amounts with their currency, rows with their links."""
    usage = bill.usage
    currency = usage.currency
    return {
        "bill": bill,
        "usage": usage,
        "evidence": EVIDENCE.get(usage.evidence, usage.evidence),
        "plan": link_to(usage.plan.list, usage.plan) if usage.plan else "none covered it",
        "prices": _prices(bill.lines[-1]) if bill.lines else "",
        "charged": money(bill.charged, currency),
        "credited": money(bill.credited, currency),
        "total": money(bill.total, currency),
        "wasted_cost": money(bill.wasted_cost, currency),
        "outcomes": [(one, money(one.amount, currency)) for one in bill.outcomes],
        "lines": [
            {
                "row": line,
                "amount": money(line.amount, line.currency),
                "period": link_to(line.period, line.period.name),
                "entry": link_to(getattr(line, "entry", None), "line"),
                "settlement": link_to(line, line.n),
            }
            for line in bill.lines
        ],
        "credits": [
            {
                "row": credit,
                "amount": money(credit.amount, credit.currency),
                "period": link_to(credit.period, credit.period.name),
                "entry": link_to(credit, local(credit.created_at)),
            }
            for credit in bill.credits
        ],
        "waste": [(waste, money(waste.cost, waste.currency)) for waste in bill.waste],
    }


def _prices(line: Settlement) -> str:
    """Those of all its lines: a session keeps the prices of its beginning."""
    input, cached, output = (
        money(price, line.currency)
        for price in (
            line.input_per_million,
            line.cached_input_per_million,
            line.output_per_million,
        )
    )
    return (
        f"{input} input, {cached} cached input, {output} output per million tokens; coefficient "
        f"{plain(line.coefficient)}; policy {line.policy}"
    )
