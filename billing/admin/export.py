"""Exports: made here or by ``manage.py export_billing``, and kept with their checksums."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from billing.admin.figures import count, page_of
from billing.admin.filters import ByTenant, OneOf, WithRowFilters
from billing.admin.pages import REFUSALS, BillingPages, tell_refusal
from billing.conf import conf
from billing.core.months import NAME
from billing.exports import elsewhere, run
from billing.exports.formats import FORMATS
from billing.models import Export, LedgerEntry
from streaming.admin.audited import actor_of
from streaming.admin.pages import Tool, require
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfTenant, limit_choices
from streaming.admin.times import local
from streaming.models import Tenant

EXPORT = "billing.export_ledger"
IN_WORDS = {
    "csv": "CSV, for spreadsheets and scripts",
    "jsonl": "JSON lines",
    "xlsx": "Excel (split where a sheet is full)",
    "parquet": "Parquet, for pandas and polars",
    "focus": "FOCUS, for FinOps tools (CSV)",
}


class ByFormat(OneOf):
    title = "format"
    parameter_name = "format"
    values = [(name, name) for name in FORMATS]


class ExportForm(forms.Form):
    period = forms.RegexField(
        NAME,
        max_length=7,
        strip=True,
        help_text="A month like 2026-11.",
        error_messages={"invalid": "This is no month; write it like 2026-11."},
    )
    tenant = forms.ModelChoiceField(
        queryset=Tenant.objects.all(),
        required=False,
        widget=AutocompleteSelect(Export._meta.get_field("tenant"), admin.site),
        help_text="Empty: all of them.",
    )
    format = forms.ChoiceField(choices=[(name, IN_WORDS.get(name, name)) for name in FORMATS])


@admin.register(Export)
class ExportAdmin(OfTenant, WithRowFilters, BillingPages, ReadOnlyAdmin):
    change_form_template = "admin/billing/export.html"
    list_display = [
        "made", "period_name", "whose", "format", "lines", "came_to", "checksums", "requested_by",
    ]  # fmt: skip
    list_display_links = ["made", "period_name"]
    list_select_related = ["tenant"]
    list_filter = [ByFormat, ByTenant]
    search_fields = ["=period_name"]
    search_help_text = "A month like 2026-11."
    fields = [
        "made", "period_name", "whose", "format", "requested_by", "came_to", "lines", "amounts",
        "downloads", "audit_head", "manifest_shown",
    ]  # fmt: skip
    readonly_fields = [
        "made", "whose", "came_to", "lines", "amounts", "downloads", "audit_head", "manifest_shown",
    ]  # fmt: skip

    @admin.display(description="asked for", ordering="pk")
    def made(self, row: Export) -> str:
        return local(row.created_at)

    @admin.display(description="tenant")
    def whose(self, row: Export) -> str:
        return str(row.tenant or "all")

    @admin.display
    def lines(self, row: Export) -> str:
        return count(row.rows)

    @admin.display(description="state")
    def came_to(self, row: Export) -> str:
        if row.error:
            return f"failed: {row.error}"
        return "ready" if row.finished_at else "being made"

    @admin.display(description="SHA-256")
    def checksums(self, row: Export) -> SafeString:
        return format_html_join(
            mark_safe("<br>"),
            '<span title="{}">{}…</span>',
            ((file["sha256"], file["sha256"][:12]) for file in _files(row)),
        )

    @admin.display(description="amounts, exact")
    def amounts(self, row: Export) -> str:
        amounts = row.manifest.get("amounts", {})
        return ", ".join(f"{amount} {currency}" for currency, amount in amounts.items()) or "-"

    @admin.display(description="files")
    def downloads(self, row: Export) -> SafeString | str:
        if not row.finished_at:
            return "-"
        may = getattr(row, "may_download", False)
        files = format_html_join(
            mark_safe("<br>"),
            "{} – {} lines, {} bytes, SHA-256 <code>{}</code>",
            (
                (
                    _link(row, file["name"]) if may else file["name"],
                    count(file["rows"]),
                    count(file["bytes"]),
                    file["sha256"],
                )
                for file in _files(row)
            ),
        )
        return format_html("{}<br>{}", files, _link(row, "manifest.json")) if may else files

    @admin.display(description="head of the audit log")
    def audit_head(self, row: Export) -> str:
        head = row.manifest.get("audit_head")
        return f"{head['seq']}: {head['hash']}" if head else "-"

    @admin.display(description="manifest")
    def manifest_shown(self, row: Export) -> SafeString:
        text = json.dumps(row.manifest, indent=2, ensure_ascii=False)
        return format_html('<pre class="billing-manifest">{}</pre>', text)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        export = super().get_object(request, object_id, from_field)
        if export is not None:
            # The methods above have no request; whether it may download, only that can tell.
            export.may_download = request.user.has_perm(EXPORT)
        return export

    def list_tools(self, request: HttpRequest) -> list[Tool]:
        if not request.user.has_perm(EXPORT):
            return []
        return [Tool("Make an export…", reverse("admin:billing_export_make"))]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.make_view)
        return [path("make/", view, name="billing_export_make"), *super().get_urls()]

    def make_view(self, request: HttpRequest) -> HttpResponse:
        """Write the lines of a month into files."""
        require(request, EXPORT)
        initial = {name: request.GET.get(name, "") for name in ("period", "tenant", "format")}
        form = ExportForm(request.POST or None, initial=initial)
        limit_choices(form, request.user)
        if form.is_valid():
            wanted = form.cleaned_data
            try:
                export = run.request(
                    period_name=wanted["period"],
                    tenant_id=wanted["tenant"].pk if wanted["tenant"] else None,
                    format=wanted["format"],
                    actor=actor_of(request),
                )
                if is_long(export):
                    elsewhere.start(export)
                    messages.info(request, "It is being made; this page looks again by itself.")
                else:
                    run.make(export)
                    messages.success(request, f"{count(export.rows)} lines exported.")
            except REFUSALS as refusal:
                tell_refusal(request, refusal)
            else:
                return HttpResponseRedirect(page_of(export))
        return self.page(
            request,
            "admin/billing/form.html",
            "Make an export",
            form=form,
            media=self.media + form.media,
            lead="Of a closed period every export of a format has the same bytes. It takes about a "
            "minute for a million lines.",
            button="Export",
            back=reverse("admin:billing_export_changelist"),
        )


def is_long(export: Export) -> bool:
    """Whether it has more lines than are made at once."""
    lines = LedgerEntry.objects.filter(period__name=export.period_name)
    if export.tenant_id is not None:
        lines = lines.filter(tenant_id=export.tenant_id)
    most = conf().export_at_once
    return lines[: most + 1].count() > most


def _files(row: Export) -> list[dict[str, Any]]:
    return row.manifest.get("files", [])


def _link(row: Export, name: str) -> SafeString:
    return format_html('<a href="{}" download>{}</a>', file_page(row, name), name)


def file_page(row: Export, name: str) -> str:
    """Where a file of an export is downloaded."""
    return reverse("billing:export-file", args=[row.pk, name])
