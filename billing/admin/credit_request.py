"""Credits and adjustments that are large enough to need a second person."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from billing.admin.figures import amount_cell, link_to
from billing.admin.filters import ByTenant, OneOf, WithRowFilters
from billing.admin.pages import REFUSALS, BillingPages
from billing.models import CreditRequest
from billing.services import credits
from streaming.admin.confirmation import confirmed_action
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local

APPROVE = "billing.approve_credit"


class ByDecision(OneOf):
    title = "decision"
    parameter_name = "decision"
    values = list(CreditRequest.Decision.choices)


@admin.register(CreditRequest)
class CreditRequestAdmin(OfTenant, WithRowFilters, BillingPages, ReadOnlyAdmin):
    list_display = [
        "asked", "tenant", "exact", "reason", "requested_by", "decision", "decided_by",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = [ByDecision, ByTenant]
    search_fields = ["=requested_by"]
    fields = [
        "tenant", "charge_shown", "exact", "reason", "requested_by", "asked", "decision",
        "decided_by", "decided_at", "entry_shown",
    ]  # fmt: skip
    readonly_fields = ["charge_shown", "exact", "asked", "entry_shown"]
    actions = [
        confirmed_action(
            "approve",
            description="Approve selected requests",
            question="These lines are booked at once, and cannot be taken out again. Approve them?",
            done="Approved.",
            act=lambda request, by: credits.approve(request.pk, actor=by),
            signed=True,
            permission="approve",
            refusals=REFUSALS,
        ),
        confirmed_action(
            "refuse",
            description="Refuse selected requests",
            question="Nothing will be booked for these. Refuse them?",
            done="Refused.",
            act=lambda request, by: credits.refuse(request.pk, actor=by),
            signed=True,
            permission="approve",
            refusals=REFUSALS,
        ),
    ]

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(APPROVE)

    @admin.display(description="asked for", ordering="pk")
    def asked(self, row: CreditRequest) -> str:
        return local(row.requested_at)

    @admin.display(description="amount")
    def exact(self, row: CreditRequest) -> SafeString:
        return amount_cell(row.amount, row.currency)

    @admin.display(description="credits the charge")
    def charge_shown(self, row: CreditRequest) -> SafeString | str:
        return link_to(row.charge)

    @admin.display(description="booked as")
    def entry_shown(self, row: CreditRequest) -> SafeString | str:
        return link_to(row.entry)

    def list_tools(self, request: HttpRequest) -> Any:
        return ()
