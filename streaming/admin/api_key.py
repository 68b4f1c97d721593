"""API keys: made here or by ``manage.py create_api_key``; the secret is shown once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils import timezone

from streaming.admin.audited import AuditedAdmin, actor_of
from streaming.admin.confirmation import confirmed_action
from streaming.admin.tenancy import OfTenant
from streaming.models import ApiKey
from streaming.services.api_keys import issue, revoke_api_key


class ApiKeyForm(forms.ModelForm):
    class Meta:
        model = ApiKey
        fields = [
            "tenant", "name", "cost_centre", "is_test", "on_disconnect", "level", "requests_per_minute",
            "tokens_per_minute", "streams_at_once", "expires_at",
        ]  # fmt: skip

    def clean_expires_at(self) -> datetime | None:
        until = self.cleaned_data["expires_at"]
        if until is not None and "expires_at" in self.changed_data and until <= timezone.now():
            raise forms.ValidationError("This is in the past: revoke the key instead.")
        return until


@admin.register(ApiKey)
class ApiKeyAdmin(OfTenant, AuditedAdmin):
    audited_as = "key"
    told = (
        "on_disconnect", "cost_centre", "expires_at", "level", "requests_per_minute",
        "tokens_per_minute", "streams_at_once",
    )  # fmt: skip
    form = ApiKeyForm
    list_display = [
        "prefix", "tenant", "name", "active", "is_test", "on_disconnect", "created_at", "expires_at",
        "revoked_at",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = ["is_test", ("revoked_at", admin.EmptyFieldListFilter)]
    search_fields = ["^prefix", "^tenant__name", "name"]
    autocomplete_fields = ["tenant"]
    ordering = ["-id"]
    fields = [
        "tenant", "name", "cost_centre", "is_test", "on_disconnect", "level", "requests_per_minute",
        "tokens_per_minute", "streams_at_once", "expires_at", "prefix", "active", "created_at",
        "revoked_at", "replaced_by",
    ]  # fmt: skip
    readonly_fields = ["prefix", "active", "created_at", "revoked_at", "replaced_by"]
    actions = [
        confirmed_action(
            "revoke",
            description="Revoke selected API keys",
            question="Requests with these keys will be refused at once and for good. Revoke them?",
            done="Revoked.",
            act=lambda key, by: revoke_api_key(str(key.pk), by=by),
            signed=True,
        )
    ]

    def audit_subject(self, obj: ApiKey) -> tuple[str, int | None]:
        return f"key:{obj.prefix}", obj.tenant_id

    @admin.display(boolean=True)
    def active(self, key: ApiKey) -> bool:
        return key.is_active(timezone.now())

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return self.fields if obj else ApiKeyForm.Meta.fields

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        return [*self.readonly_fields, "tenant", "is_test"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False  # sessions name their key: revoke it instead

    def save_model(
        self, request: HttpRequest, obj: ApiKey, form: forms.ModelForm, change: bool
    ) -> None:
        if change:
            obj.save(update_fields=form.changed_data)
            self.announce_saved(request, obj, form, change)
            return
        secret = issue(obj, by=actor_of(request))
        messages.warning(request, f"The key is {secret} – copy it now, it is not shown again.")
