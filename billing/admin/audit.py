"""The audit log, and whether it is whole."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from billing.admin.figures import bill_link, short_bill_link
from billing.admin.pages import BillingPages
from billing.models import AuditEntry
from billing.services import verification
from streaming.admin.pages import Tool
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import id_range
from streaming.admin.tenancy import OfTenant, is_limited
from streaming.admin.times import local

FACTS = 160
"""Characters of what an entry tells that a list shows."""


@admin.register(AuditEntry)
class AuditEntryAdmin(OfTenant, BillingPages, ReadOnlyAdmin):
    list_display = ["seq", "when", "action", "actor", "subject", "short_session", "facts"]
    search_fields = ["subject"]
    search_help_text = (
        "A session’s id or how it begins (8 characters or more); an action (ledger.credit); or a "
        "subject or how it begins (node:gpu-1)."
    )
    fields = [
        "seq", "exactly", "action", "actor", "subject", "tenant_id", "session", "data", "previous_hex",
        "hash_hex",
    ]  # fmt: skip
    readonly_fields = ["exactly", "session", "previous_hex", "hash_hex"]

    @admin.display(description="at")
    def when(self, entry: AuditEntry) -> str:
        return local(entry.at)

    @admin.display(description="at")
    def exactly(self, entry: AuditEntry) -> str:
        # What the hash is over is in UTC, to the microsecond.
        return f"{local(entry.at)} ({entry.at.astimezone(UTC):%H:%M:%S.%f} UTC)"

    @admin.display
    def facts(self, entry: AuditEntry) -> str:
        return facts_of(entry)

    @admin.display(description="session")
    def short_session(self, entry: AuditEntry) -> SafeString | str:
        return short_bill_link(entry.session_id)

    @admin.display
    def session(self, entry: AuditEntry) -> SafeString | str:
        return bill_link(entry.session_id)

    @admin.display(description="the hash before it")
    def previous_hex(self, entry: AuditEntry) -> str:
        return bytes(entry.previous).hex()

    @admin.display(description="its hash")
    def hash_hex(self, entry: AuditEntry) -> str:
        return bytes(entry.hash).hex()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        # One condition, so that one index leads through: never an OR of them.
        term = search_term.strip()
        if not term:
            return queryset, False
        if between := id_range(term):
            return queryset.filter(session_id__range=between), False
        if ":" in term or "." not in term:
            return queryset.filter(subject__startswith=term), False
        return queryset.filter(action=term), False

    def list_tools(self, request: HttpRequest) -> list[Tool]:
        if is_limited(request.user):
            return []
        return [Tool("Verify the log…", reverse("admin:billing_auditentry_verify"))]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.verify_view)
        return [path("verify/", view, name="billing_auditentry_verify"), *super().get_urls()]

    def verify_view(self, request: HttpRequest) -> HttpResponse:
        """Walk the whole chain, once somebody has pressed the button: it reads every row."""
        if not self.has_view_permission(request) or is_limited(request.user):
            raise PermissionDenied
        verdict = verification.verify() if request.method == "POST" else None
        return self.page(request, "admin/billing/verify.html", "Verify", verdict=verdict)


def facts_of(entry: AuditEntry) -> str:
    """What an entry tells, as far as a list has room; without hashes, which say nothing to readers."""
    said = json.loads(entry.data)
    said.pop("sha256", None)
    words = ", ".join(f"{name}: {value}" for name, value in said.items() if value not in ("", None))
    return Truncator(words).chars(FACTS)
