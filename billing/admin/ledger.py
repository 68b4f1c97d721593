"""The ledger: read here, and added to by credits and adjustments."""

from __future__ import annotations

import secrets
from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from billing.admin.amounts import AmountField
from billing.admin.figures import amount_cell, bill_link, bill_page, link_to, money, short_bill_link
from billing.admin.filters import ByCurrency, ByKind, ByPeriod, ByTenant, WithRowFilters
from billing.admin.pages import REFUSALS, BillingPages, tell_refusal
from billing.core.money import AMOUNT_DIGITS, AMOUNT_PLACES
from billing.models import CreditRequest, LedgerEntry
from billing.models.money import CurrencyField
from billing.services import bills, credits
from streaming.admin.audited import actor_of
from streaming.admin.pages import Tool, require
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import id_range
from streaming.admin.tenancy import OfTenant, limit_choices
from streaming.admin.times import local
from streaming.models import Tenant

BOOK = "billing.book_credit"
MOST_AT_ONCE = 100

LIST = "admin:billing_ledgerentry_changelist"


def new_key() -> forms.CharField:
    """Hidden in a form: sending it twice books once."""
    return forms.CharField(
        widget=forms.HiddenInput, max_length=40, initial=lambda: secrets.token_urlsafe(16)
    )


def reason() -> forms.CharField:
    return forms.CharField(
        max_length=300,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text="On the statement, in exports and for the auditor. No personal data.",
    )


class CreditForm(forms.Form):
    amount = AmountField(
        max_digits=AMOUNT_DIGITS,
        decimal_places=AMOUNT_PLACES,
        min_value=Decimal(1).scaleb(-AMOUNT_PLACES),
        required=False,
        help_text="Of each charge, in its currency; empty: all that is left of it.",
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    reason = reason()
    key = new_key()


class AdjustmentForm(forms.Form):
    tenant = forms.ModelChoiceField(
        queryset=Tenant.objects.all(),
        widget=AutocompleteSelect(LedgerEntry._meta.get_field("tenant"), admin.site),
    )
    currency = CurrencyField().formfield()
    amount = AmountField(
        max_digits=AMOUNT_DIGITS,
        decimal_places=AMOUNT_PLACES,
        help_text="Negative: in the tenant’s favour.",
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )
    reason = reason()
    key = new_key()

    def clean_amount(self) -> Decimal:
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("An adjustment of nothing.")
        return amount


@admin.register(LedgerEntry)
class LedgerEntryAdmin(OfTenant, WithRowFilters, BillingPages, ReadOnlyAdmin):
    list_display = [
        "booked", "kind", "tenant", "month", "model", "exact", "short_session", "reason",
    ]  # fmt: skip
    list_display_links = ["booked", "kind"]
    list_select_related = ["tenant", "period"]
    list_filter = [ByKind, ByCurrency, ByTenant, ByPeriod]
    search_fields = ["id"]
    search_help_text = (
        "The line’s id or its session’s, or how they begin (8 characters or more); or its key."
    )
    actions = ["credit_selected"]
    fieldsets = [
        (None, {"fields": ["id", "kind", "exact", "correction", "reason"]}),
        ("Whose and when", {"fields": ["tenant", "month", "model", "cost_centre"]}),
        ("What it stands for", {"fields": ["session", "settlement_shown", "charge_shown", "credited", "left"]}),
        ("How it was booked", {"fields": ["booked", "actor", "idempotency_key", "audited"]}),
    ]  # fmt: skip
    readonly_fields = [
        "id", "exact", "month", "session", "settlement_shown", "charge_shown", "credited", "left",
        "booked", "audited",
    ]  # fmt: skip

    # --- columns -----------------------------------------------------------------------------------

    @admin.display(description="booked", ordering="pk")
    def booked(self, entry: LedgerEntry) -> str:
        return local(entry.created_at)

    @admin.display(description="amount")
    def exact(self, entry: LedgerEntry) -> SafeString:
        return amount_cell(entry.amount, entry.currency)

    @admin.display(description="period")
    def month(self, entry: LedgerEntry) -> SafeString | str:
        return link_to(entry.period, entry.period.name)

    @admin.display(description="session")
    def short_session(self, entry: LedgerEntry) -> SafeString | str:
        return short_bill_link(entry.session_id)

    @admin.display
    def session(self, entry: LedgerEntry) -> SafeString | str:
        return bill_link(entry.session_id)

    @admin.display(description="settlement")
    def settlement_shown(self, entry: LedgerEntry) -> SafeString | str:
        return link_to(entry.settlement)

    @admin.display(description="credits the charge")
    def charge_shown(self, entry: LedgerEntry) -> SafeString | str:
        return link_to(entry.charge)

    @admin.display(description="its credits")
    def credited(self, entry: LedgerEntry) -> SafeString | str:
        if entry.kind != LedgerEntry.Kind.CHARGE:
            return "-"
        rows = list(entry.credits.order_by("pk")[:MOST_AT_ONCE])
        shown = format_html_join(
            mark_safe("<br>"), "{} – {}", ((link_to(row), row.reason) for row in rows)
        )
        return shown or "none"

    @admin.display(description="left of it")
    def left(self, entry: LedgerEntry) -> str:
        if entry.kind != LedgerEntry.Kind.CHARGE:
            return "-"
        return money(bills.left_of([entry])[entry.pk], entry.currency)

    @admin.display(description="in the audit log")
    def audited(self, entry: LedgerEntry) -> SafeString:
        query = urlencode({"q": f"ledger:{entry.pk}"})
        return format_html(
            '<a href="{}?{}">ledger:{}</a>',
            reverse("admin:billing_auditentry_changelist"), query, entry.pk,
        )  # fmt: skip

    # --- finding -----------------------------------------------------------------------------------

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        if between := id_range(term):
            return queryset.filter(Q(id__range=between) | Q(session_id__range=between)), False
        return queryset.filter(idempotency_key=term), False

    # --- pages -------------------------------------------------------------------------------------

    def has_book_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(BOOK)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("credit/", view(self.credit_view), name="billing_ledgerentry_credit"),
            path("adjust/", view(self.adjust_view), name="billing_ledgerentry_adjust"),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: LedgerEntry) -> list[Tool]:
        found = []
        if obj.kind == LedgerEntry.Kind.CHARGE and obj.amount and self.has_book_permission(request):
            found.append(Tool("Credit…", credit_page([obj.pk])))
        if obj.session_id is not None:
            found.append(Tool("Bill of the session", bill_page(obj.session_id)))
        return found

    def list_tools(self, request: HttpRequest) -> list[Tool]:
        if not self.has_book_permission(request):
            return []
        return [Tool("Book an adjustment…", reverse("admin:billing_ledgerentry_adjust"))]

    @admin.action(description="Credit selected charges…", permissions=["book"])
    def credit_selected(
        self, request: HttpRequest, queryset: QuerySet[LedgerEntry]
    ) -> HttpResponse | None:
        chosen = list(queryset.values_list("pk", "kind")[: MOST_AT_ONCE + 1])
        charges = [pk for pk, kind in chosen if kind == LedgerEntry.Kind.CHARGE]
        if len(chosen) > MOST_AT_ONCE:
            messages.error(request, f"At most {MOST_AT_ONCE} lines at once.")
            return None
        if len(charges) < len(chosen):
            messages.error(request, "Only charges can be credited.")
            return None
        return HttpResponseRedirect(credit_page(charges))

    def credit_view(self, request: HttpRequest) -> HttpResponse:
        """Take back (part of) charges: how much of each, and why."""
        require(request, BOOK)
        entries = _charges(request, self.get_queryset(request))
        form = CreditForm(request.POST or None)
        left = bills.left_of(entries)
        if form.is_valid():
            for entry in entries:
                self._credit(request, entry, form.cleaned_data, left[entry.pk])
            return HttpResponseRedirect(
                reverse("admin:billing_ledgerentry_change", args=[entries[0].pk])
                if len(entries) == 1
                else reverse(LIST)
            )
        return self.page(
            request,
            "admin/billing/credit.html",
            "Credit",
            entries[0] if len(entries) == 1 else None,
            form=form,
            lines=[
                {
                    "entry": entry,
                    "amount": money(entry.amount, entry.currency),
                    "left": money(left[entry.pk], entry.currency),
                }
                for entry in entries
            ],
            button="Credit",
            back=reverse(LIST),
        )

    def _credit(
        self, request: HttpRequest, entry: LedgerEntry, said: dict[str, Any], left: Decimal
    ) -> None:
        amount = said["amount"] or left
        try:
            booked = credits.book_credit(
                charge_id=entry.pk,
                amount=amount,
                reason=said["reason"],
                actor=actor_of(request),
                key=f"desk:{said['key']}",
            )
        except REFUSALS as refusal:
            tell_refusal(request, refusal)
        else:
            _tell_booked(request, booked)

    def adjust_view(self, request: HttpRequest) -> HttpResponse:
        """Book what is neither a charge nor the credit of one."""
        require(request, BOOK)
        form = AdjustmentForm(request.POST or None)
        limit_choices(form, request.user)
        if form.is_valid():
            said = form.cleaned_data
            try:
                booked = credits.book_adjustment(
                    tenant_id=said["tenant"].pk,
                    currency=said["currency"],
                    amount=said["amount"],
                    reason=said["reason"],
                    actor=actor_of(request),
                    key=f"desk:{said['key']}",
                )
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
            else:
                _tell_booked(request, booked)
                return HttpResponseRedirect(reverse(LIST))
        return self.page(
            request,
            "admin/billing/form.html",
            "Book an adjustment",
            form=form,
            media=self.media + form.media,
            lead="It goes into the tenant’s current period. To take back a charge, credit the charge.",
            button="Book",
            back=reverse(LIST),
        )


def credit_page(charges: list[UUID]) -> str:
    """Where these charges can be credited."""
    query = urlencode({"charge": [str(charge) for charge in charges]}, doseq=True)
    return f"{reverse('admin:billing_ledgerentry_credit')}?{query}"


def _charges(request: HttpRequest, rows: QuerySet[LedgerEntry]) -> list[LedgerEntry]:
    """The charges among ``rows`` that the address names, in its order. Raises ``Http404``."""
    try:
        wanted = [UUID(one) for one in request.GET.getlist("charge")][:MOST_AT_ONCE]
    except ValueError as exc:
        raise Http404("no such charge") from exc
    found = rows.select_related("tenant", "period").in_bulk(wanted)
    charges = [found[pk] for pk in wanted if pk in found]
    if not charges or any(one.kind != LedgerEntry.Kind.CHARGE for one in charges):
        raise Http404("no such charge")
    return charges


def _tell_booked(request: HttpRequest, booked: LedgerEntry | CreditRequest) -> None:
    shown = link_to(booked, money(booked.amount, booked.currency))
    if isinstance(booked, CreditRequest):
        messages.warning(request, format_html("{} waits for a second person to approve.", shown))
    else:
        messages.success(request, format_html("{} booked.", shown))
