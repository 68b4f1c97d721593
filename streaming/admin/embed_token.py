"""Embed tokens: who came with which. They are minted by products' backends; here they are ended."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone

from streaming.admin.confirmation import confirmed_action
from streaming.admin.plain_text import visible
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant
from streaming.models import EmbedToken
from streaming.services.embed_tokens import revoke_by_hand


@admin.register(EmbedToken)
class EmbedTokenAdmin(OfTenant, ReadOnlyAdmin):
    list_display = [
        "id", "tenant", "user", "api_key", "origin", "active", "created_at", "expires_at",
        "revoked_at",
    ]  # fmt: skip
    list_select_related = ["tenant", "api_key__tenant"]
    list_filter = [("revoked_at", admin.EmptyFieldListFilter)]
    search_fields = ["=id", "=end_user", "^tenant__name"]
    ordering = ["-created_at"]
    # The preset is the product's own: a prompt may be its secret.
    fields = [
        "id", "tenant", "api_key", "user", "origin", "models_allowed", "preset_names", "level",
        "variant", "requests_per_minute", "tokens_per_minute", "streams_at_once", "active",
        "created_at", "expires_at", "revoked_at",
    ]  # fmt: skip
    readonly_fields = ["user", "preset_names", "active"]
    actions = [
        confirmed_action(
            "revoke",
            description="Revoke selected embed tokens",
            question="Requests with these tokens will be refused at once and for good. Revoke them?",
            done="Revoked.",
            act=revoke_by_hand,
            signed=True,
            permission="revoke",
        )
    ]

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("streaming.change_embedtoken")

    @admin.display(boolean=True)
    def active(self, token: EmbedToken) -> bool:
        return token.is_active(timezone.now())

    @admin.display(description="end user", ordering="end_user")
    def user(self, token: EmbedToken) -> Any:
        return visible(token.end_user)

    @admin.display(description="set for its requests")
    def preset_names(self, token: EmbedToken) -> str:
        return ", ".join(sorted(token.preset)) or "nothing"
