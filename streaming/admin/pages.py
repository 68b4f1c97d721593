"""Pages beside Django's own, and the links to them above lists and objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse


@dataclass(frozen=True, slots=True)
class Tool:
    """A link above a list or an object."""

    words: str
    url: str


class WithPages(admin.ModelAdmin):
    """``tools`` are shown above an object, ``list_tools`` above the list."""

    change_form_template = "admin/streaming/with_tools_form.html"
    change_list_template = "admin/streaming/with_tools_list.html"

    def tools(self, request: HttpRequest, obj: Any) -> Sequence[Tool]:
        return ()

    def list_tools(self, request: HttpRequest) -> Sequence[Tool]:
        return ()

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            context["tools"] = self.tools(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        tools = {"tools": self.list_tools(request)}
        return super().changelist_view(request, {**tools, **(extra_context or {})})

    def page(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        obj: Model | None = None,
        **context: Any,
    ) -> TemplateResponse:
        """A page in the look of the admin; ``obj`` is the row that it is about."""
        return TemplateResponse(
            request,
            template,
            {
                **self.admin_site.each_context(request),
                "title": title,
                "opts": self.opts,
                "original": obj,
                "media": self.media,
                **context,
            },
        )


def require(request: HttpRequest, permission: str) -> None:
    """Raises ``PermissionDenied`` for who does not have it."""
    if not request.user.has_perm(permission):
        raise PermissionDenied
