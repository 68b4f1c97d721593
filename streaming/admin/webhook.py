"""Webhooks of tenants: where they are told what happened to their sessions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from streaming.admin.audited import actor_of
from streaming.admin.confirmation import confirmed_action
from streaming.admin.pages import Tool, WithPages
from streaming.admin.tenancy import OfTenant
from streaming.models import WebhookEndpoint
from streaming.services import webhooks
from streaming.services.refused import Refused


class WebhookForm(forms.ModelForm):
    url = forms.URLField(max_length=500, assume_scheme="https", label="URL")
    events = forms.MultipleChoiceField(
        choices=[(kind.value, kind.value) for kind in webhooks.Kind],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text="What it is told; none chosen: all.",
    )

    class Meta:
        model = WebhookEndpoint
        fields = ["tenant", "url", "events"]

    def clean(self) -> Any:
        values = super().clean() or {}
        try:
            webhooks.check(
                WebhookEndpoint(url=values.get("url", ""), events=values.get("events", []))
            )
        except Refused as exc:
            if "url" in values:  # else that is told already
                raise forms.ValidationError({"url": str(exc)}) from exc
        return values


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(OfTenant, WithPages):
    form = WebhookForm
    list_display = [
        "url", "tenant", "told", "is_active", "failing_since", "retry_at", "disabled_reason",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = ["is_active", ("failing_since", admin.EmptyFieldListFilter)]
    search_fields = ["url", "^tenant__name"]
    autocomplete_fields = ["tenant"]
    ordering = ["-id"]
    readonly_fields = [
        "is_active", "disabled_reason", "failing_since", "retry_at", "secret_version", "rotated_at",
        "created_at",
    ]  # fmt: skip
    actions = [
        confirmed_action(
            "switch_on",
            description="Switch on selected webhooks",
            question="What waits for these webhooks is sent again. Switch them on?",
            done="Switched on.",
            act=lambda endpoint, by: webhooks.switch(endpoint, on=True, by=by),
            signed=True,
        ),
        confirmed_action(
            "switch_off",
            description="Switch off selected webhooks",
            question="What happens while they are off is not kept for them. Switch them off?",
            done="Switched off.",
            act=lambda endpoint, by: webhooks.switch(endpoint, on=False, by=by, why="by hand"),
            signed=True,
        ),
        confirmed_action(
            "send_test",
            description="Send selected webhooks a test message",
            question="The worker sends each of them a message that says nothing. Go on?",
            done="Has a test message to come: see its deliveries.",
            act=webhooks.enqueue_test,
            signed=True,
        ),
        confirmed_action(
            "rotate",
            description="Give selected webhooks a new secret",
            question="Messages are signed with the former secret, too, for 24 hours. Go on?",
            done="Has a new secret.",
            act=lambda endpoint, by: shown_once(webhooks.rotate(endpoint, by=by)),
            signed=True,
            tells=True,
        ),
        confirmed_action(
            "end_former_secret",
            description="End the former secret of selected webhooks",
            question="Receivers that still have the former secret will refuse what comes. End it?",
            done="Signs with its present secret only.",
            act=webhooks.end_former_secret,
            signed=True,
        ),
    ]

    @admin.display(description="events")
    def told(self, endpoint: WebhookEndpoint) -> str:
        return ", ".join(endpoint.events) or "all"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*WebhookForm.Meta.fields, *(self.readonly_fields if obj else ())]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*self.readonly_fields, "tenant"] if obj else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # the log hangs on it: switch it off instead

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            webhooks.change(obj, by=actor_of(request))
            return
        messages.warning(request, f"{obj}: {shown_once(webhooks.add(obj, by=actor_of(request)))}")

    def tools(self, request: HttpRequest, obj: WebhookEndpoint) -> list[Tool]:
        if not request.user.has_perm("streaming.view_webhookdelivery"):
            return []
        url = reverse("admin:streaming_webhookdelivery_changelist")
        return [Tool("Its deliveries", f"{url}?{urlencode({'endpoint': obj.pk})}")]


def shown_once(secret: str) -> str:
    """What whoever has it made is told of a secret."""
    return f"it is signed with {secret} – copy that now, it is not shown again."
