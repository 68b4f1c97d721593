"""The log of webhooks: what each was told, and how that went."""

from __future__ import annotations

import json

from django.contrib import admin
from django.http import HttpRequest

from streaming.admin.confirmation import confirmed_action
from streaming.admin.filters import ByRow, OneOf, WithRowFilters
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant
from streaming.models import WebhookDelivery
from streaming.services import webhooks


class ByEndpoint(ByRow):
    field_name = "endpoint"


class ByState(OneOf):
    title = "state"
    parameter_name = "state"
    values = list(WebhookDelivery.State.choices)


class ByKind(OneOf):
    title = "kind"
    parameter_name = "kind"
    values = [(kind.value, kind.value) for kind in webhooks.Kind]


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(OfTenant, WithRowFilters, ReadOnlyAdmin):
    tenant_path = "endpoint__tenant_id"
    list_display = [
        "id", "kind", "endpoint", "session_id", "state", "tries", "response_status", "error",
        "created_at", "delivered_at",
    ]  # fmt: skip
    list_select_related = ["endpoint"]
    list_filter = [ByState, ByKind, ByEndpoint]
    search_fields = ["=id", "=session_id"]
    search_help_text = "The message’s id, or the session’s."
    ordering = ["-created_at"]
    fields = [
        "id", "endpoint", "kind", "session_id", "state", "tries", "next_try_at", "response_status",
        "error", "created_at", "delivered_at", "message",
    ]  # fmt: skip
    readonly_fields = ["message"]
    actions = [
        confirmed_action(
            "send_again",
            description="Send selected messages again",
            question="Receivers that know the ids of these messages will ignore them. Go on?",
            done="Is sent again.",
            act=webhooks.send_again,
            signed=True,
            permission="send",
        )
    ]

    @admin.display(description="message")
    def message(self, delivery: WebhookDelivery) -> str:
        return json.dumps(delivery.payload, indent=2, ensure_ascii=False)

    def has_send_permission(self, request: HttpRequest) -> bool:
        """Who keeps webhooks may send their messages again."""
        return request.user.has_perm("streaming.change_webhookendpoint")
