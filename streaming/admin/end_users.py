"""The data of one of a tenant's end users, handed out or erased: a page beside the tenant's own.

Who an end user is stands in no address, no message and no log: it is sent in forms only.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import path, reverse

from streaming.admin.audited import actor_of
from streaming.admin.download import Download
from streaming.admin.pages import Tool, WithPages, require
from streaming.models import Tenant
from streaming.services import retention
from streaming.services.refused import Refused

ERASE = "streaming.purge_content"
SEE = "streaming.reveal_content"
"""Who exports sees what was asked and answered, so it takes both."""


class _UserForm(forms.Form):
    user = forms.CharField(
        label="End user",
        max_length=128,
        strip=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="As the tenant’s requests name them, exactly.",
    )


class ExportForm(_UserForm):
    prefix = "export"


class EraseForm(_UserForm):
    prefix = "erase"
    again = forms.CharField(
        label="The same once more",
        max_length=128,
        strip=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="It cannot be undone.",
    )

    def clean_again(self) -> str:
        again: str = self.cleaned_data["again"]
        if again != self.cleaned_data.get("user"):
            raise forms.ValidationError("This is not the same.")
        return again


class WithEndUsers(WithPages):
    """For the admin of tenants."""

    def tools(self, request: HttpRequest, obj: Any) -> Sequence[Tool]:
        if not request.user.has_perm(ERASE):
            return super().tools(request, obj)
        url = reverse("admin:streaming_tenant_end_user", args=[obj.pk])
        return [*super().tools(request, obj), Tool("Data of an end user", url)]

    def get_urls(self) -> list[Any]:
        page = self.admin_site.admin_view(self._end_user)
        return [
            path("<int:pk>/end-user/", page, name="streaming_tenant_end_user"),
            *super().get_urls(),
        ]

    def _end_user(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        require(request, ERASE)
        tenant = get_object_or_404(self.get_queryset(request), pk=pk)
        data = request.POST if request.method == "POST" else None
        is_erasure = data is not None and "erase" in data
        export = ExportForm(None if is_erasure else data)
        erase = EraseForm(data if is_erasure else None)
        try:
            if export.is_bound and export.is_valid():
                if not request.user.has_perm(SEE):
                    raise PermissionDenied
                return _exported(request, tenant, export.cleaned_data["user"])
            if erase.is_bound and erase.is_valid():
                user = erase.cleaned_data["user"]
                count = retention.erase_end_user(tenant.pk, user, by=actor_of(request))
                messages.success(request, f"Erased: {count} sessions.")
                return HttpResponseRedirect(request.path)
        except Refused as exc:
            messages.error(request, str(exc))
        return self.page(
            request,
            "admin/streaming/end_user.html",
            "Data of an end user",
            tenant,
            export=export if request.user.has_perm(SEE) else None,
            erase=erase,
        )


def _exported(request: HttpRequest, tenant: Tenant, user: str) -> Download:
    pieces = retention.export_end_user(tenant.pk, user, by=actor_of(request))
    file = tempfile.TemporaryFile()  # noqa: SIM115  the response closes it
    _write(pieces, file)
    file.seek(0)
    return Download(
        file,
        as_attachment=True,
        filename="end-user.jsonl",
        content_type="application/jsonl; charset=utf-8",
        headers={"Cache-Control": "private, no-store"},
    )


def _write(pieces: Iterable[dict[str, Any]], file: IO[bytes]) -> None:
    for piece in pieces:
        file.write(json.dumps(piece, ensure_ascii=False).encode() + b"\n")
