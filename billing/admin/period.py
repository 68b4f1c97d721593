"""Periods: what they come to, whether they can be closed, and closing them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils import timezone
from django.utils.http import urlencode

from billing.admin.export import EXPORT
from billing.admin.figures import count, money, page_of, session_page
from billing.admin.filters import ByTenant, WithRowFilters, whether
from billing.admin.pages import REFUSALS, BillingPages, tell_refusal
from billing.errors import PeriodNotReady
from billing.models import BillingPeriod, LedgerEntry, PeriodTotal
from billing.services import closing, reconciliation
from billing.services.reconciliation import Report
from streaming.admin.audited import actor_of
from streaming.admin.confirmation import confirmed_action
from streaming.admin.pages import Tool, require
from streaming.admin.read_only import ReadOnlyAdmin, ReadOnlyInline
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local, utc

CLOSE = "billing.change_billingperiod"
LARGE = 20_000
"""Looking at more lines than these takes long: a page asks first."""
LISTED = 200


class TotalInline(ReadOnlyInline):
    """The only rounded amounts there are."""

    model = PeriodTotal
    ordering = ["currency"]
    fields = ["currency", "shown_lines", "exact_sum", "rounded_sum", "rule"]
    readonly_fields = ["shown_lines", "exact_sum", "rounded_sum"]
    verbose_name_plural = "totals, from the close on"

    @admin.display(description="lines")
    def shown_lines(self, total: PeriodTotal) -> str:
        return count(total.lines)

    @admin.display(description="exact")
    def exact_sum(self, total: PeriodTotal) -> str:
        return money(total.exact, total.currency)

    @admin.display(description="rounded")
    def rounded_sum(self, total: PeriodTotal) -> str:
        return money(total.rounded, total.currency)


@admin.register(BillingPeriod)
class BillingPeriodAdmin(OfTenant, WithRowFilters, BillingPages, ReadOnlyAdmin):
    list_display = ["name", "tenant", "state", "starts", "ends", "time_zone", "closed_by"]
    list_select_related = ["tenant"]
    list_filter = [
        whether("state", "closed", "closed_at", "Closed", "Open"),
        ByTenant,
    ]
    search_fields = ["=name", "^tenant__name"]
    search_help_text = "A month like 2026-11, or how a tenant’s name begins."
    ordering = ["-name", "tenant__name"]
    fields = ["tenant", "name", "starts", "ends", "time_zone", "state", "closed_by"]
    readonly_fields = ["starts", "ends", "state"]
    inlines = [TotalInline]
    change_form_template = "admin/billing/period.html"
    actions = [
        confirmed_action(
            "close",
            description="Close selected periods",
            question="Nothing enters these periods any more, and their totals are rounded, for good. "
            "Those whose checklist is not in order stay open. Close them?",
            done="Closed.",
            act=lambda period, by: closing.close_period(period.pk, actor=by),
            signed=True,
            permission="close",
            refusals=REFUSALS,
        )
    ]

    @admin.display(ordering="starts_at")
    def starts(self, period: BillingPeriod) -> str:
        return utc(period.starts_at)

    @admin.display(description="ends (exclusive)", ordering="ends_at")
    def ends(self, period: BillingPeriod) -> str:
        return utc(period.ends_at)

    @admin.display(ordering="closed_at")
    def state(self, period: BillingPeriod) -> str:
        if period.closed_at:
            return f"closed {local(period.closed_at)}"
        return "open" if period.ends_at > timezone.now() else "over, to be closed"

    def has_close_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CLOSE)

    def get_queryset(self, request: HttpRequest) -> QuerySet[BillingPeriod]:
        # Choosing one by typing shows the tenants of twenty.
        return super().get_queryset(request).select_related("tenant")

    # --- pages -------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path(
                "<int:period_id>/close/", view(self.close_view), name="billing_billingperiod_close"
            ),
            path(
                "<int:period_id>/reconcile/",
                view(self.reconcile_view),
                name="billing_billingperiod_reconcile",
            ),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: BillingPeriod) -> list[Tool]:
        found = []
        if obj.closed_at is None and self.has_close_permission(request):
            url = reverse("admin:billing_billingperiod_close", args=[obj.pk])
            found.append(Tool("Close…", url))
        url = reverse("admin:billing_billingperiod_reconcile", args=[obj.pk])
        found.append(Tool("Reconcile", url))
        if request.user.has_perm("billing.view_ledgerentry"):
            url = reverse("admin:billing_ledgerentry_changelist")
            found.append(Tool("Its lines", f"{url}?{urlencode({'period': obj.pk})}"))
        if request.user.has_perm(EXPORT):
            url = reverse("admin:billing_export_make")
            query = urlencode({"period": obj.name, "tenant": str(obj.tenant_id)})
            found.append(Tool("Export…", f"{url}?{query}"))
            found.append(Tool("Statement", statement_page(obj)))
        return found

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None and obj.checklist:
            context["checklist"] = shown_checklist(obj.checklist)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def close_view(self, request: HttpRequest, period_id: int) -> HttpResponse:
        """The checklist, and closing despite those of its items that are put up with."""
        require(request, CLOSE)
        period = get_object_or_404(self.get_queryset(request), pk=period_id)
        checklist: dict[str, Any] | None = None
        if "close" in request.POST:
            despite = frozenset(request.POST.getlist("despite"))
            try:
                closing.close_period(period.pk, actor=actor_of(request), despite=despite)
            except PeriodNotReady as refusal:
                tell_refusal(request, refusal)
                checklist = refusal.checklist
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
            else:
                messages.success(request, f"{period} is closed.")
                return HttpResponseRedirect(page_of(period))
        elif request.method == "POST" or not is_large(period):
            checklist = closing.checklist(period).as_dict()
        return self.page(
            request,
            "admin/billing/close.html",
            "Close",
            period,
            checklist=checklist and shown_checklist(checklist),
            large=LARGE,
            back=page_of(period),
        )

    def reconcile_view(self, request: HttpRequest, period_id: int) -> HttpResponse:
        """Whether ledger, settlements and log agree, and where not."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        period = get_object_or_404(self.get_queryset(request), pk=period_id)
        report = None
        if request.method == "POST" or not is_large(period):
            report = reconciliation.reconcile(period)
        return self.page(
            request,
            "admin/billing/reconcile.html",
            "Reconcile",
            period,
            report=report,
            amounts=report and _amounts(report),
            differences=report and [_shown(one.as_dict()) for one in report.differences[:LISTED]],
            listed=LISTED,
            large=LARGE,
        )


def is_large(period: BillingPeriod) -> bool:
    """Whether looking at all of its lines takes long."""
    return LedgerEntry.objects.filter(period=period)[: LARGE + 1].count() > LARGE


def shown_checklist(checklist: dict[str, Any]) -> dict[str, Any]:
    """A checklist, live or as it was stored, for the template."""
    despite = checklist.get("despite", [])
    return {
        "items": [
            {
                "name": name,
                **item,
                "despite": name in despite,
                "can_be_put_up_with": name != closing.NOT_OVER,
            }
            for name in closing.ITEMS  # JSON as it is stored has no order
            if (item := checklist.get("items", {}).get(name)) is not None
        ],
        "differences": [_shown(one) for one in checklist.get("differences", [])],
        "must_wait": bool(checklist.get("items", {}).get(closing.NOT_OVER, {}).get("open")),
    }


def statement_page(period: BillingPeriod) -> str:
    """Where the statement of a period is."""
    return reverse("billing:statement", args=[period.pk])


def _amounts(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "currency": total.currency,
            "lines": total.lines,
            "amount": money(total.amount, total.currency),
            "charges": money(total.charges, total.currency),
            "credits": money(total.credits, total.currency),
            "adjustments": money(total.adjustments, total.currency),
        }
        for total in report.totals
    ]


def _shown(difference: dict[str, Any]) -> dict[str, Any]:
    session_id = difference.get("session_id")
    return {**difference, "url": session_page(session_id) if session_id else ""}
