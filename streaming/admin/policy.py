"""Switches of models on all nodes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from streaming.admin.audited import actor_of
from streaming.admin.tenancy import OfFleet
from streaming.models import ModelPolicy
from streaming.models.node import Switch
from streaming.services import switches


class PolicyForm(forms.ModelForm):
    class Meta:
        model = ModelPolicy
        fields = ["model", "failover", "hedging", "defragment"]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if (data.get("failover"), data.get("hedging")) == (Switch.OFF, Switch.ON) and (
            "hedging" in self.changed_data
        ):
            self.add_error("hedging", "A hedge is a continuation elsewhere: turn failover on.")
        return data


@admin.register(ModelPolicy)
class ModelPolicyAdmin(OfFleet):
    form = PolicyForm
    list_display = ["model", "failover", "hedging", "defragment"]
    search_fields = ["^model"]
    ordering = ["model"]

    def save_model(
        self, request: HttpRequest, obj: ModelPolicy, form: forms.ModelForm, change: bool
    ) -> None:
        obj.save()
        for column in form.changed_data:
            switches.note_switched(
                obj.model, column, was=form.initial.get(column), now=getattr(obj, column),
                by=actor_of(request),
            )  # fmt: skip

    def delete_model(self, request: HttpRequest, obj: ModelPolicy) -> None:
        switches.remove_policy(obj, by=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ModelPolicy]) -> None:
        for policy in queryset:
            self.delete_model(request, policy)
