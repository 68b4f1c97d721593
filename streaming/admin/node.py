"""Engine nodes: configured here, observed by the gateways."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe

from streaming.admin.audited import actor_of
from streaming.admin.node_orders import ACTIONS, WithNodeOrders
from streaming.admin.tenancy import OfFleet
from streaming.admin.times import local
from streaming.core.nodes import NodeSpec
from streaming.models import InferenceNode
from streaming.models.node import Switch
from streaming.services import node_admin

LATEST = 50


class NodeForm(forms.ModelForm):
    """Checks an address as ENGINE_NODES is checked: Django's URL field knows no host without a dot."""

    weight = forms.FloatField(
        initial=1.0,
        min_value=0.01,
        max_value=1000,
        help_text="Its share of the streams, against the other nodes.",
    )

    class Meta:
        model = InferenceNode
        fields = [
            "name", "dialect", "base_url", "weight", "options", "failover", "hedging", "defragment",
        ]  # fmt: skip
        field_classes = {"base_url": forms.CharField}
        labels = {"base_url": "Base URL"}
        help_texts = {
            "base_url": "For example http://gpu-a:8000",
            "options": 'For example {"credential": "env:GPU_A_KEY", "capacity": "64"}, or '
            '{"continuation": "text", "template": "chatml"} for an engine without token ids, or '
            '{"dns": "all"} for one node at each address of the name.',
        }
        widgets = {"options": forms.Textarea(attrs={"rows": 3})}

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            NodeSpec.parse(f"{name}=vllm+http://host")
        except ValueError as exc:
            raise forms.ValidationError("Letters, digits, dots, dashes and underscores.") from exc
        return name

    def clean_base_url(self) -> str:
        try:
            return NodeSpec.parse(f"node=vllm+{self.cleaned_data['base_url']}").base_url
        except ValueError as exc:
            raise forms.ValidationError("This is not of the form http://host:port.") from exc

    def _get_validation_exclusions(self) -> set[str]:
        # Django's hook for "this field has been dealt with". Uniqueness is still checked below.
        return {*super()._get_validation_exclusions(), "base_url"}  # type: ignore[misc]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        others = InferenceNode.objects.exclude(pk=self.instance.pk)
        if "base_url" in data and others.filter(base_url=data["base_url"]).exists():
            self.add_error("base_url", "There is a node at this address already.")
        # Both are on at first: whoever turns failover off need not think of hedging.
        if (data.get("failover"), data.get("hedging")) == (Switch.OFF, Switch.ON) and (
            "hedging" in self.changed_data
        ):
            self.add_error("hedging", "A hedge is a continuation elsewhere: turn failover on.")
        return data


@admin.register(InferenceNode)
class InferenceNodeAdmin(OfFleet, WithNodeOrders):
    form = NodeForm
    list_display = [
        "name", "shown_state", "circuit", "dialect", "base_url", "served", "our_streams", "running",
        "waiting", "kv_usage", "abilities", "checked_at", "source",
    ]  # fmt: skip
    list_filter = ["admin_state", "health", "circuit", "dialect", "source"]
    ordering = ["name"]
    fieldsets = [
        (None, {"fields": ["name", "dialect", "base_url", "weight", "options"]}),
        ("Switches", {"fields": ["failover", "hedging", "defragment"]}),
        (
            "State",
            {
                "fields": [
                    "shown_state", "admin_state", "admin_state_at", "health", "health_reason",
                    "circuit", "checked_at",
                ]
            },
        ),
        (
            "What it is and does",
            {
                "fields": [
                    "served", "abilities", "our_streams", "running", "waiting", "kv_usage", "figures",
                    "capabilities", "parent", "source", "created_at",
                ]
            },
        ),
        ("History", {"fields": ["what_happened"]}),
    ]  # fmt: skip
    readonly_fields = [
        "shown_state", "admin_state", "admin_state_at", "health", "health_reason", "circuit",
        "checked_at", "served", "abilities", "our_streams", "running", "waiting", "kv_usage", "figures",
        "capabilities", "parent", "source", "created_at",
        "what_happened",
    ]  # fmt: skip
    actions = ACTIONS

    def get_queryset(self, request: HttpRequest) -> QuerySet[InferenceNode]:
        return node_admin.with_streams(super().get_queryset(request))

    @admin.display(description="models")
    def served(self, node: InferenceNode) -> str:
        return ", ".join(node.models_served) or "-"

    @admin.display(description="state", ordering="admin_state")
    def shown_state(self, node: InferenceNode) -> str:
        return node.state

    @admin.display(ordering="streams")
    def our_streams(self, node: Any) -> int:
        return node.streams

    @admin.display
    def running(self, node: InferenceNode) -> Any:
        return node.figures.get("running")

    @admin.display
    def waiting(self, node: InferenceNode) -> Any:
        return node.figures.get("waiting")

    @admin.display(description="KV-cache")
    def kv_usage(self, node: InferenceNode) -> str | None:
        usage = node.figures.get("kv_usage")
        return None if usage is None else f"{usage:.0%}"

    @admin.display(description=f"the latest {LATEST}, newest first")
    def what_happened(self, node: InferenceNode) -> SafeString:
        # No inline: gateways add rows while a form is open, and it could not be saved any more.
        events = node.events.order_by("-id")[:LATEST]
        return format_html_join(
            mark_safe("<br>"),
            "{} <b>{}</b> {}",
            (
                (
                    local(event.at),
                    event.kind,
                    ", ".join(f"{name}: {value}" for name, value in event.data.items() if value),
                )
                for event in events
            ),
        )

    def get_fieldsets(self, request: HttpRequest, obj: InferenceNode | None = None) -> Any:
        return self.fieldsets if obj else self.fieldsets[:2]

    def get_readonly_fields(self, request: HttpRequest, obj: InferenceNode | None = None) -> Any:
        if _follows_another(obj):  # the next start of a gateway, or its name, would undo a change
            fixed = ["name", "dialect", "base_url", "options"]
            if obj is not None and obj.source == InferenceNode.Source.DNS:
                fixed.append("weight")
            return [*self.readonly_fields, *fixed]
        return self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: InferenceNode | None = None) -> bool:
        return not _follows_another(obj) and super().has_delete_permission(request, obj)

    def save_model(
        self, request: HttpRequest, obj: InferenceNode, form: forms.ModelForm, change: bool
    ) -> None:
        # Gateways write health and models at any moment: never write back what the form saw.
        obj.save(update_fields=form.changed_data if change else None)
        by = actor_of(request)
        if not change:
            node_admin.note_added(obj, by=by)
            return
        before = {column: form.initial.get(column) for column in form.changed_data}
        node_admin.note_change(obj, before, by=by)

    def delete_model(self, request: HttpRequest, obj: InferenceNode) -> None:
        node_admin.remove_node(obj.name, by=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[InferenceNode]) -> None:
        for node in queryset:
            self.delete_model(request, node)


def _follows_another(node: InferenceNode | None) -> bool:
    """Whether its row is kept by the environment, or by the name that it is an address of."""
    return node is not None and (
        node.source == InferenceNode.Source.ENVIRONMENT or node.parent_id is not None
    )
