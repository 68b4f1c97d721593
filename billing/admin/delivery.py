"""Usage events, and what became of them."""

from __future__ import annotations

from django.contrib import admin

from billing.admin.filters import BySink, OneOf, WithRowFilters
from billing.admin.pages import BillingPages
from billing.models import EventDelivery
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local


class ByState(OneOf):
    title = "state"
    parameter_name = "state"
    values = list(EventDelivery.State.choices)


@admin.register(EventDelivery)
class EventDeliveryAdmin(OfTenant, WithRowFilters, BillingPages, ReadOnlyAdmin):
    tenant_path = "sink__tenant_id"
    list_display = [
        "event_id",
        "sink",
        "type",
        "state",
        "tries",
        "answered",
        "made",
        "delivered_at",
    ]
    list_select_related = ["sink"]
    list_filter = [ByState, BySink]
    search_fields = ["=event_id"]
    search_help_text = "The event’s id: it is the same for every sink."
    fields = [
        "event_id", "sink", "type", "state", "tries", "next_at", "answered", "made", "delivered_at",
        "body",
    ]  # fmt: skip
    readonly_fields = ["made"]

    @admin.display(description="made", ordering="pk")
    def made(self, row: EventDelivery) -> str:
        return local(row.created_at)
