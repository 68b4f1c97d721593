"""Price lists. Prices are never changed: new ones follow the old, from a moment on."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime, AutocompleteSelect
from django.db.models import Prefetch, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.admin.amounts import AmountField
from billing.admin.figures import money, page_of
from billing.admin.pages import REFUSALS, BillingPages, tell_refusal
from billing.core.money import plain
from billing.core.policy import Policy
from billing.models import PriceList, PricePlan
from billing.services import prices
from streaming.admin.audited import actor_of
from streaming.admin.pages import Tool, require
from streaming.admin.read_only import ReadOnly, ReadOnlyInline
from streaming.admin.tenancy import OfTenant, limit_choices
from streaming.admin.times import in_zone, local
from streaming.models import Tenant

ADD = "billing.add_priceplan"
AMOUNTS = [
    "input_per_million", "cached_input_per_million", "output_per_million", "cost_per_million",
    "coefficient",
]  # fmt: skip
PLAN = ["currency", *AMOUNTS, "policy", "effective_from", "note"]


class PlanForm(forms.ModelForm):
    """New prices. Those of a list that is there already have no fields for whose they are."""

    tenant = forms.ModelChoiceField(
        queryset=Tenant.objects.all(), required=False, help_text="Empty: the prices of everybody."
    )
    model = forms.CharField(
        max_length=200, required=False, help_text="A served model; empty: every model."
    )
    effective_from = forms.SplitDateTimeField(
        required=False,
        widget=AdminSplitDateTime,
        help_text=in_zone(
            "Time in {zone}; empty: from now on. Sessions that began before keep their prices."
        ),
    )

    class Meta:
        model = PricePlan
        fields = PLAN
        field_classes = dict.fromkeys(AMOUNTS, AmountField)
        labels = {
            "input_per_million": "Input, per million tokens",
            "cached_input_per_million": "Cached input, per million tokens",
            "output_per_million": "Output, per million tokens",
            "cost_per_million": "Our own cost, per million tokens",
        }

    field_order = ["tenant", "model", *PLAN]

    def __init__(self, *args: Any, price_list: PriceList | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if price_list is not None:
            del self.fields["tenant"], self.fields["model"]
        else:
            key = PriceList._meta.get_field("tenant")
            widget = AutocompleteSelect(key, admin.site)
            field: Any = self.fields["tenant"]
            widget.choices = field.choices
            field.widget = widget


class PlanInline(ReadOnlyInline):
    """What has been, is and will be charged, the newest first."""

    model = PricePlan
    ordering = ["-effective_from"]
    fields = [
        "effective_from", "effective_to", "input", "cached_input", "output", "own_cost",
        "multiplied_by", "policy", "note", "created_by",
    ]  # fmt: skip
    readonly_fields = ["input", "cached_input", "output", "own_cost", "multiplied_by", "created_by"]
    verbose_name_plural = "plans (prices per million tokens)"

    @admin.display
    def input(self, plan: PricePlan) -> str:
        return money(plan.input_per_million, plan.currency)

    @admin.display(description="cached input")
    def cached_input(self, plan: PricePlan) -> str:
        return money(plan.cached_input_per_million, plan.currency)

    @admin.display
    def output(self, plan: PricePlan) -> str:
        return money(plan.output_per_million, plan.currency)

    @admin.display(description="our own cost")
    def own_cost(self, plan: PricePlan) -> str:
        return money(plan.cost_per_million, plan.currency)

    @admin.display(description="coefficient")
    def multiplied_by(self, plan: PricePlan) -> str:
        return plain(plan.coefficient)


@admin.register(PriceList)
class PriceListAdmin(OfTenant, ReadOnly, BillingPages):
    list_display = ["whose", "what", "now", "policy_now"]
    list_display_links = ["whose", "what"]
    list_select_related = ["tenant"]
    list_per_page = 50
    search_fields = ["^model", "^tenant__name"]
    ordering = ["tenant__name", "model"]
    fields = ["whose", "what"]
    readonly_fields = ["whose", "what"]
    inlines = [PlanInline]
    actions = None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(ADD)

    def get_queryset(self, request: HttpRequest) -> QuerySet[PriceList]:
        now = timezone.now()
        in_force = PricePlan.objects.filter(
            Q(effective_to__isnull=True) | Q(effective_to__gt=now), effective_from__lte=now
        )
        return (
            super().get_queryset(request).prefetch_related(Prefetch("plans", in_force, "in_force"))
        )

    @admin.display(description="tenant", ordering="tenant__name")
    def whose(self, row: PriceList) -> str:
        return str(row.tenant or "everybody")

    @admin.display(description="model", ordering="model")
    def what(self, row: PriceList) -> str:
        return row.model or "every model"

    @admin.display(description="input / cached / output per million, now")
    def now(self, row: Any) -> SafeString | str:
        if not row.in_force:
            return "no price in force"
        plan = row.in_force[0]
        return format_html(
            "{} / {} / {}",
            plain(plan.input_per_million),
            plain(plan.cached_input_per_million),
            money(plan.output_per_million, plan.currency),
        )

    @admin.display(description="policy")
    def policy_now(self, row: Any) -> str:
        return row.in_force[0].policy if row.in_force else "-"

    def tools(self, request: HttpRequest, obj: PriceList) -> list[Tool]:
        if not request.user.has_perm(ADD):
            return []
        found = [Tool("New prices…", reverse("admin:billing_pricelist_prices", args=[obj.pk]))]
        if (plan := _to_be_ended(obj)) is not None:
            words = "Withdraw the latest…" if _has_not_begun(plan) else "End without new ones…"
            found.append(Tool(words, reverse("admin:billing_pricelist_end", args=[obj.pk])))
        return found

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("<int:list_id>/prices/", view(self.prices_view), name="billing_pricelist_prices"),
            path("<int:list_id>/end/", view(self.end_view), name="billing_pricelist_end"),
            *super().get_urls(),
        ]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return self.prices_view(request)

    def prices_view(self, request: HttpRequest, list_id: int | None = None) -> HttpResponse:
        """Set new prices: of a list, or of a tenant and a model that have none of their own yet."""
        require(request, ADD)
        price_list = (
            None if list_id is None else get_object_or_404(self.get_queryset(request), pk=list_id)
        )
        latest = price_list and price_list.plans.order_by("-effective_from").first()
        initial = {name: _as_typed(getattr(latest, name)) for name in PLAN[:-2]} if latest else {}
        form = PlanForm(
            request.POST or None, initial={"effective_from": None, **initial}, price_list=price_list
        )
        limit_choices(form, request.user)
        if form.is_valid():
            values = dict(form.cleaned_data)
            chosen = values.pop("tenant", None)
            owner = price_list.tenant if price_list else chosen
            model = price_list.model if price_list else values.pop("model")
            try:
                plan = prices.set_plan(
                    tenant_id=owner.pk if owner else None,
                    model=model,
                    actor=actor_of(request),
                    **{**values, "policy": Policy(values["policy"])},
                )
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
            else:
                messages.success(request, f"In force from {local(plan.effective_from)}.")
                return HttpResponseRedirect(page_of(plan.list))
        return self.page(
            request,
            "admin/billing/form.html",
            "New prices",
            price_list,
            form=form,
            media=self.media + form.media,
            lead="Prices are never changed, for what was charged by them stays charged: these follow "
            "those that are in force now.",
            button="Set these prices",
            back=page_of(price_list)
            if price_list
            else reverse("admin:billing_pricelist_changelist"),
        )

    def end_view(self, request: HttpRequest, list_id: int) -> HttpResponse:
        """Let the latest prices end without others, or take them back if they have not begun."""
        require(request, ADD)
        price_list = get_object_or_404(self.get_queryset(request), pk=list_id)
        plan = _to_be_ended(price_list)
        if plan is None:
            raise Http404("no prices to end")
        withdraw = _has_not_begun(plan)
        form = forms.Form(request.POST) if withdraw else EndForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                if withdraw:
                    prices.withdraw_plan(plan.pk, actor=actor_of(request))
                else:
                    prices.end_plan(
                        plan.pk,
                        effective_to=form.cleaned_data["effective_to"],
                        actor=actor_of(request),
                    )
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
            else:
                messages.success(request, "Withdrawn." if withdraw else "Ended.")
                return HttpResponseRedirect(page_of(price_list))
        begins = f"The prices that begin at {local(plan.effective_from)} are taken back."
        return self.page(
            request,
            "admin/billing/form.html",
            "Withdraw prices" if withdraw else "End prices",
            price_list,
            form=form,
            media=self.media + form.media,
            lead=f"{begins} Those before them go on."
            if withdraw
            else "Less special prices count then; where there are none, usage is settled at 0.",
            button="Withdraw them" if withdraw else "End them",
            back=page_of(price_list),
        )


class EndForm(forms.Form):
    effective_to = forms.SplitDateTimeField(
        widget=AdminSplitDateTime,
        help_text=in_zone("Time in {zone}, not in the past. Sessions that began before keep them."),
    )


def _to_be_ended(price_list: PriceList) -> PricePlan | None:
    """The latest plan, if it has no end yet."""
    return price_list.plans.filter(effective_to__isnull=True).order_by("-effective_from").first()


def _has_not_begun(plan: PricePlan) -> bool:
    return plan.effective_from > timezone.now()


def _as_typed(value: Any) -> Any:
    return plain(value) if isinstance(value, Decimal) else value
