"""Content rules: kept by tenants for themselves, by superusers for all; tried before they are in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path, reverse

from streaming.admin.audited import AuditedAdmin
from streaming.admin.filters import ByTenant, WithRowFilters
from streaming.admin.pages import Tool, WithPages, require
from streaming.admin.tenancy import OfTenant, limit_choices
from streaming.core.content_rules import RuleRefused
from streaming.models import ContentRule, Tenant
from streaming.services import content_rules

VIEW = "streaming.view_contentrule"


class ContentRuleForm(forms.ModelForm):
    class Meta:
        model = ContentRule
        fields = [
            "tenant", "name", "kind", "pattern", "case_sensitive", "action", "replacement", "is_active",
        ]  # fmt: skip

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if {"kind", "pattern", "action"} <= given.keys():
            try:
                content_rules.check(ContentRule(**{**given, "tenant": None}))
            except RuleRefused as refusal:
                self.add_error("pattern", str(refusal))
        if {"action", "replacement"} <= given.keys():
            try:
                content_rules.check_replacement(ContentRule(**{**given, "tenant": None}))
            except RuleRefused as refusal:
                self.add_error("replacement", str(refusal))
        return given


class SampleForm(forms.Form):
    text = forms.CharField(
        label="A text",
        max_length=content_rules.LONGEST_SAMPLE,
        strip=False,
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 8}),
        help_text="As an engine would say it. It is not stored.",
    )


class TenantSampleForm(SampleForm):
    tenant = forms.ModelChoiceField(
        Tenant.objects.order_by("name"),
        required=False,
        help_text="Its rules, and those for all tenants. Empty: only those for all.",
    )


@admin.register(ContentRule)
class ContentRuleAdmin(OfTenant, WithRowFilters, WithPages, AuditedAdmin):
    audited_as = "rule"
    told = ("kind", "action", "case_sensitive", "is_active")
    form = ContentRuleForm
    list_display = ["name", "for_whom", "kind", "action", "is_active", "created_at"]
    list_select_related = ["tenant"]
    list_filter = ["action", "kind", "is_active", ByTenant]
    search_fields = ["name", "^tenant__name"]
    autocomplete_fields = ["tenant"]
    ordering = ["tenant__name", "name"]

    def audit_subject(self, obj: ContentRule) -> tuple[str, int | None]:
        return f"rule:{obj.name}", obj.tenant_id

    def announce(self, request: HttpRequest, obj: Any, did: str, **data: Any) -> None:
        if "action" in data:  # which is the name of what is audited
            data["does"] = data.pop("action")
        super().announce(request, obj, did, **data)

    def get_urls(self) -> list[Any]:
        def page(where: str, view: Any, name: str) -> Any:
            return path(
                where, self.admin_site.admin_view(view), name=f"streaming_contentrule_{name}"
            )

        return [
            page("try/", self.try_view, "try"),
            page("<int:pk>/try/", self.try_one_view, "try_one"),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: Any) -> Sequence[Tool]:
        url = reverse("admin:streaming_contentrule_try_one", args=[obj.pk])
        return [*super().tools(request, obj), Tool("Try it on a text", url)]

    def list_tools(self, request: HttpRequest) -> Sequence[Tool]:
        url = reverse("admin:streaming_contentrule_try")
        return [*super().list_tools(request), Tool("Try them on a text", url)]

    def try_view(self, request: HttpRequest) -> HttpResponse:
        """What becomes of a text by the rules in force."""
        require(request, VIEW)
        form = TenantSampleForm(request.POST if request.method == "POST" else None)
        limit_choices(form, request.user)
        tried = None
        if form.is_bound and form.is_valid():
            tenant = form.cleaned_data["tenant"]
            tried = content_rules.try_on(
                form.cleaned_data["text"], tenant_id=None if tenant is None else tenant.pk
            )
        return self._tried(request, "Try the rules in force", None, form, tried)

    def try_one_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """What becomes of a text by one rule, in force or not."""
        require(request, VIEW)
        rule = get_object_or_404(self.get_queryset(request), pk=pk)
        form = SampleForm(request.POST if request.method == "POST" else None)
        tried = None
        if form.is_bound and form.is_valid():
            try:
                tried = content_rules.try_rule(rule, form.cleaned_data["text"])
            except RuleRefused as refusal:
                form.add_error(None, f"The rule is not applied. {refusal}")
        return self._tried(request, f"Try rule {rule.name}", rule, form, tried)

    def _tried(
        self,
        request: HttpRequest,
        title: str,
        rule: ContentRule | None,
        form: forms.Form,
        tried: content_rules.Tried | None,
    ) -> HttpResponse:
        list_url = reverse("admin:streaming_contentrule_changelist")
        page = self.page(
            request,
            "admin/streaming/try_rules.html",
            title,
            rule,
            form=form,
            tried=tried,
            possible=True,
            button="Try",
            back=reverse("admin:streaming_contentrule_change", args=[rule.pk])
            if rule
            else list_url,
        )
        page["Cache-Control"] = "private, no-store"
        return page

    @admin.display(description="tenant", ordering="tenant__name", empty_value="all tenants")
    def for_whom(self, row: ContentRule) -> str | None:
        return row.tenant.name if row.tenant else None
