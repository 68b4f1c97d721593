"""Credits for all sessions of an incident: what they would come to, who agrees, how far they are."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.admin.credit_request import APPROVE
from billing.admin.figures import count, money, page_of
from billing.admin.ledger import BOOK, reason
from billing.admin.pages import REFUSALS, BillingPages, tell_refusal
from billing.core.money import plain
from billing.models import BulkCredit
from billing.services import bulk_credits, credits
from billing.services.bulk_credits import Choice, Preview
from streaming.admin.audited import actor_of
from streaming.admin.confirmation import confirmed_action
from streaming.admin.pages import Tool, require
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfFleet, is_limited
from streaming.models import Incident, Tenant

CREDIT = "streaming.credit_incident"
VIEW = "billing.view_creditrequest"
AT_ONCE_SECONDS = 3.0
"""For so long the page books itself; the rest the worker does."""
LISTED = 200


class BulkCreditForm(forms.Form):
    which = forms.ChoiceField(
        choices=BulkCredit.Which.choices, initial=BulkCredit.Which.NOTICED, label="Of"
    )
    percent = forms.DecimalField(
        min_value=Decimal("0.01"), max_value=100, max_digits=5, decimal_places=2, initial=100,
        help_text="Of what is left of each charge.",
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )  # fmt: skip
    reason = reason()
    seen = forms.CharField(widget=forms.HiddenInput, required=False, max_length=64)


def may_credit(request: HttpRequest) -> bool:
    """Whether somebody may credit incidents: it books for all tenants at once."""
    return request.user.has_perms([BOOK, CREDIT])


@admin.register(BulkCredit)
class BulkCreditAdmin(OfFleet, BillingPages, ReadOnlyAdmin):
    change_form_template = "admin/billing/bulk_credit.html"
    list_display = [
        "number", "asked", "about", "which", "share", "requested_by", "state", "decided_by",
    ]  # fmt: skip
    list_filter = ["state"]
    fields = [
        "about", "which", "share", "reason", "state", "requested_by", "asked", "decided_by",
        "decided_at", "progress",
    ]  # fmt: skip
    readonly_fields = ["about", "share", "asked", "progress"]
    actions = [
        confirmed_action(
            "approve",
            description="Approve selected bulk credits",
            question="All of their lines are booked, and cannot be taken out again. Approve them?",
            done="Approved.",
            act=lambda bulk, by: _approve(bulk, by),
            signed=True,
            permission="approve",
            refusals=REFUSALS,
        ),
        confirmed_action(
            "refuse",
            description="Refuse selected bulk credits",
            question="Nothing will be booked for these. Refuse them?",
            done="Refused.",
            act=lambda bulk, by: bulk_credits.refuse(bulk.pk, actor=by),
            signed=True,
            permission="approve",
            refusals=REFUSALS,
        ),
    ]

    # Whoever sees large credits that wait sees these too.
    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_limited(request.user) and request.user.has_perm(VIEW)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(APPROVE)

    # --- columns -----------------------------------------------------------------------------------

    @admin.display(description="no.", ordering="pk")
    def number(self, bulk: BulkCredit) -> int:
        return bulk.pk

    @admin.display(description="asked for (UTC)", ordering="pk")
    def asked(self, bulk: BulkCredit) -> str:
        return f"{bulk.requested_at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="incident")
    def about(self, bulk: BulkCredit) -> SafeString:
        # Not by the row itself, which may be gone.
        page = reverse("admin:streaming_incident_change", args=[bulk.incident_id])
        return format_html('<a href="{}">{}</a>', page, bulk.incident_id)

    @admin.display(description="percent of what was left")
    def share(self, bulk: BulkCredit) -> str:
        return f"{plain(bulk.percent)} %"

    @admin.display
    def progress(self, bulk: BulkCredit) -> str:
        lines = bulk.lines.count()
        return f"{count(bulk.lines.filter(settled=True).count())} of {count(lines)} charges"

    # --- pages -------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.begin_view)
        return [
            path("of/<int:incident_id>/", view, name="billing_bulkcredit_begin"),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: BulkCredit) -> list[Tool]:
        return []

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
            context["totals"] = _totals_of(obj)
            context["shorter"] = obj.lines.filter(settled=True).exclude(note="").count()
        return super().render_change_form(request, context, add, change, form_url, obj)

    def begin_view(self, request: HttpRequest, incident_id: int) -> HttpResponse:
        """What it would come to; and once somebody has seen that and said yes, it is booked."""
        require(request, BOOK)
        require(request, CREDIT)
        incident = get_object_or_404(Incident, pk=incident_id)
        back = reverse("admin:streaming_incident_change", args=[incident.pk])
        form = BulkCreditForm(request.POST or None)
        found: Preview | None = None
        if form.is_valid():
            said = form.cleaned_data
            choice = Choice(incident.pk, said["which"], said["percent"])
            try:
                if "book" in request.POST:
                    return self._begin(request, choice, said)
                found = bulk_credits.preview(choice)
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
                return HttpResponseRedirect(back)
            form = BulkCreditForm({**said, "seen": found.seen})
        return self.page(
            request,
            "admin/billing/bulk_credit_begin.html",
            f"Credit incident {incident.pk}",
            form=form,
            incident=incident,
            preview=found,
            totals=_shown(found) if found is not None else [],
            sums=_sums(found) if found is not None else [],
            needs_two=found is not None and any(
                amount > credits.approval_above() for amount in found.sums.values()
            ),
            alone=plain(credits.approval_above()),
            back=back,
        )  # fmt: skip

    def _begin(self, request: HttpRequest, choice: Choice, said: dict[str, Any]) -> HttpResponse:
        bulk = bulk_credits.begin(
            choice, reason=said["reason"], actor=actor_of(request), seen=said["seen"]
        )
        if bulk.state == BulkCredit.State.WAITING:
            messages.warning(request, "It waits for a second person to approve.")
        else:
            more = bulk_credits.carry_on(AT_ONCE_SECONDS, bulk.pk)["more"]
            messages.success(
                request, "It is being booked; this page shows how far it is." if more else "Booked."
            )
        return HttpResponseRedirect(page_of(bulk))


def begin_page(incident: Incident) -> str:
    """Where all sessions of an incident are credited."""
    return reverse("admin:billing_bulkcredit_begin", args=[incident.pk])


def _approve(bulk: BulkCredit, by: str) -> None:
    bulk_credits.approve(bulk.pk, actor=by)
    bulk_credits.carry_on(AT_ONCE_SECONDS, bulk.pk)


def _shown(found: Preview) -> list[dict[str, Any]]:
    totals = found.totals[:LISTED]
    tenants = Tenant.objects.in_bulk([one.tenant_id for one in totals])
    return [
        {
            "tenant": tenants.get(one.tenant_id, one.tenant_id),
            "sessions": count(one.sessions),
            "charges": count(one.charges),
            "charged": money(one.charged, one.currency),
            "left": money(one.remaining, one.currency),
            "credit": money(one.credit, one.currency),
        }
        for one in totals
    ]


def _sums(found: Preview) -> list[str]:
    return [money(amount, currency) for currency, amount in sorted(found.sums.items())]


def _totals_of(bulk: BulkCredit) -> list[dict[str, Any]]:
    """By tenant and currency: what was asked for, and what was booked so far."""
    found = (
        bulk.lines.order_by()
        .values_list("tenant__name", "currency")
        .annotate(charges=Count("pk"), asked=Sum("amount"), booked=Sum("entry__amount"))
        .order_by("tenant__name", "currency")[:LISTED]
    )
    return [
        {
            "tenant": tenant,
            "charges": count(charges),
            "asked": money(asked, currency),
            "booked": money(-booked if booked else Decimal(0), currency),
        }
        for tenant, currency, charges, asked, booked in found
    ]
