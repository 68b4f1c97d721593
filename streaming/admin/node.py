"""Engine nodes: configured here, observed by the gateways."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from streaming.admin.confirmation import confirmed_action
from streaming.core.nodes import NodeSpec
from streaming.models import InferenceNode
from streaming.services import node_admin


class NodeForm(forms.ModelForm):
    """Checks an address as ENGINE_NODES is checked: Django's URL field knows no host without a dot."""

    weight = forms.FloatField(
        initial=1.0, min_value=0.01, help_text="Its share of the streams, against the other nodes."
    )

    class Meta:
        model = InferenceNode
        fields = ["name", "dialect", "base_url", "weight", "options"]
        field_classes = {"base_url": forms.CharField}
        labels = {"base_url": "Base URL"}
        help_texts = {
            "base_url": "For example http://gpu-a:8000",
            "options": "How a broken answer is continued here, when not by token ids: for example "
            '{"continuation": "text", "template": "chatml"} or {"continuation": "regenerate"}.',
        }
        widgets = {"options": forms.Textarea(attrs={"rows": 3})}

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
        return data


@admin.register(InferenceNode)
class InferenceNodeAdmin(admin.ModelAdmin):
    form = NodeForm
    list_display = [
        "name", "health", "admin_state", "dialect", "base_url", "served", "source", "checked_at",
    ]  # fmt: skip
    ordering = ["name"]
    fieldsets = [
        (None, {"fields": ["name", "dialect", "base_url", "weight", "options"]}),
        (
            "State",
            {
                "fields": [
                    "admin_state", "health", "health_reason", "served", "checked_at", "source",
                    "created_at",
                ]
            },
        ),
    ]  # fmt: skip
    readonly_fields = [
        "admin_state", "health", "health_reason", "served", "checked_at", "source", "created_at",
    ]  # fmt: skip
    actions = [
        confirmed_action(
            "drain",
            description="Drain selected nodes",
            question="These nodes get no new work; what runs on them may finish. Drain them?",
            done="Drained.",
            act=lambda node: node_admin.drain_node(node.name),
        ),
        confirmed_action(
            "resume",
            description="Resume selected nodes",
            question="Shall these nodes have work again?",
            done="Resumed.",
            act=lambda node: node_admin.resume_node(node.name),
        ),
    ]

    @admin.display(description="models")
    def served(self, node: InferenceNode) -> str:
        return ", ".join(node.models_served) or "-"

    def get_fieldsets(self, request: HttpRequest, obj: InferenceNode | None = None) -> Any:
        return self.fieldsets if obj else self.fieldsets[:1]

    def get_readonly_fields(self, request: HttpRequest, obj: InferenceNode | None = None) -> Any:
        if _follows_environment(obj):  # the next start of a gateway would undo a change
            return [*self.readonly_fields, "name", "dialect", "base_url", "options"]
        return self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: InferenceNode | None = None) -> bool:
        return not _follows_environment(obj) and super().has_delete_permission(request, obj)

    def save_model(
        self, request: HttpRequest, obj: InferenceNode, form: forms.ModelForm, change: bool
    ) -> None:
        # Gateways write health and models at any moment: never write back what the form saw.
        obj.save(update_fields=form.changed_data if change else None)


def _follows_environment(node: InferenceNode | None) -> bool:
    return node is not None and node.source == InferenceNode.Source.ENVIRONMENT
