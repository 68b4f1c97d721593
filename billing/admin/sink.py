"""Where usage events go."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from billing.admin.pages import REFUSALS, SavedByService
from billing.models import UsageSink
from billing.services import sinks, usage_events
from streaming.admin.audited import actor_of
from streaming.admin.confirmation import confirmed_action
from streaming.admin.pages import Tool
from streaming.admin.tenancy import OfTenant


class SinkForm(forms.ModelForm):
    url = forms.URLField(max_length=500, assume_scheme="https", label="URL")

    class Meta:
        model = UsageSink
        fields = ["name", "kind", "tenant", "url", "credential", "options", "enabled"]
        help_texts = {
            "credential": "env:NAME or file:/path, never the secret itself. Webhooks need none: they "
            "are signed.",
        }
        widgets = {"options": forms.Textarea(attrs={"rows": 3})}


@admin.register(UsageSink)
class UsageSinkAdmin(OfTenant, SavedByService):
    form = SinkForm
    list_display = ["name", "kind", "tenant", "url", "enabled", "failing_since", "retry_at"]
    list_select_related = ["tenant"]
    list_filter = ["kind", "enabled"]
    search_fields = ["^name"]
    autocomplete_fields = ["tenant"]
    ordering = ["name"]
    readonly_fields = ["failing_since", "retry_at", "signed_with"]
    actions = [
        confirmed_action(
            "switch_on",
            description="Switch on selected sinks",
            question="What waits for these sinks is sent again. Switch them on?",
            done="Switched on.",
            act=lambda sink, by: sinks.switch_sink(sink, enabled=True, actor=by),
            signed=True,
            refusals=REFUSALS,
        ),
        confirmed_action(
            "switch_off",
            description="Switch off selected sinks",
            question="What happens while they are off is not kept for them. Switch them off?",
            done="Switched off.",
            act=lambda sink, by: sinks.switch_sink(sink, enabled=False, actor=by),
            signed=True,
            refusals=REFUSALS,
        ),
        confirmed_action(
            "send_test",
            description="Send selected sinks a test event",
            question="The worker sends each of them an event that says nothing. Go on?",
            done="Has a test event to come: see its deliveries.",
            act=usage_events.announce_test,
        ),
        confirmed_action(
            "send_again",
            description="Send selected sinks again what failed",
            question="What was given up is tried again, as if it were new. Go on?",
            done="Is sent again what failed.",
            act=usage_events.replay_failed,
        ),
        confirmed_action(
            "rotate",
            description="Give selected webhooks a new signing secret",
            question="Messages are signed with the former secret too until the next time. Go on?",
            done="Has a new secret: its page shows it.",
            act=lambda sink, by: sinks.rotate(sink, actor=by),
            signed=True,
            refusals=REFUSALS,
        ),
    ]

    @admin.display(description="signing secret")
    def signed_with(self, sink: UsageSink) -> str:
        if sink.kind != UsageSink.Kind.WEBHOOK:
            return "Only webhooks are signed."
        if not getattr(sink, "secret_visible", False):
            return "Hidden: seeing it takes the permission to change sinks."
        return sinks.secret_of(sink)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        sink = super().get_object(request, object_id, from_field)
        if sink is not None:
            # The method above has no request; whether it may be shown, only that can tell.
            sink.secret_visible = self.has_change_permission(request, sink)
        return sink

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*SinkForm.Meta.fields, *(self.readonly_fields if obj else ())]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Its secret hangs on its name and kind, what was delivered on whose it is.
        return [*self.readonly_fields, "name", "kind", "tenant"] if obj else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # what was delivered hangs on it: switch it off instead

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            sinks.change_sink(obj, actor=actor_of(request))
            return
        added = sinks.add_sink(
            name=obj.name,
            url=obj.url,
            actor=actor_of(request),
            kind=obj.kind,
            tenant_name=obj.tenant and obj.tenant.name,
            credential=obj.credential,
            options=obj.options,
        )
        if not obj.enabled:
            sinks.switch_sink(added, enabled=False, actor=actor_of(request))
        obj.pk = added.pk
        if obj.kind == UsageSink.Kind.WEBHOOK:
            messages.info(request, f"It is signed with {sinks.secret_of(added)}")

    def tools(self, request: HttpRequest, obj: UsageSink) -> list[Tool]:
        if not request.user.has_perm("billing.view_eventdelivery"):
            return []
        url = reverse("admin:billing_eventdelivery_changelist")
        return [Tool("Its deliveries", f"{url}?{urlencode({'sink': obj.pk})}")]
