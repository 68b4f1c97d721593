"""The admin site of this project: Django's own, closed to whom a page or row is not meant for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from gateway_project.second_factor import devices
from gateway_project.second_factor.gate import PAGE
from gateway_project.second_factor.pages import SecondFactorPage

UNSHOWN = "django_otp."
"""Whose own pages would show secrets of staff."""

OPEN_TO_ALL_STAFF = frozenset(
    {
        "index",
        "app_list",
        "login",
        "logout",
        "password_change",
        "password_change_done",
        "autocomplete",  # asks the model admin for its rows
        "jsi18n",
        "time-zone",
        "second_factor",
        None,  # the redirect of an address of old, and the page that is not found
    }
)
"""Names of pages that belong to no model, and show every member of staff no more than they may see."""


class DeskSite(admin.AdminSite):
    """Whatever is registered is scoped to tenants, or closed to who does not see all of them."""

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        # ``streaming.admin`` registers with this site while it is imported.
        from streaming.admin.tenancy import OfFleet, Scoped

        if getattr(admin_class, "__module__", "").startswith(UNSHOWN):
            return
        chosen = admin_class or admin.ModelAdmin
        if not issubclass(chosen, Scoped):
            chosen = type(chosen.__name__, (OfFleet, chosen), {"__module__": chosen.__module__})
        super().register(model_or_iterable, chosen, **options)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            self._keep_out(request, view, [*args, *kwargs.values()])
            return view(request, *args, **kwargs)

        return super().admin_view(guarded, cacheable)

    def get_urls(self) -> list[Any]:
        page = SecondFactorPage(self)
        return [
            path("second-factor/", self.admin_view(page), name=PAGE),
            *super().get_urls(),
        ]

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        asked = devices.mode() != devices.OFF
        return {**super().each_context(request), "second_factor": asked}

    def owner_of(self, url_name: str) -> admin.ModelAdmin[Any] | None:
        """The model admin whose page has this name: ``streaming_apikey_change`` is ``ApiKeyAdmin``'s."""
        for model, model_admin in self._registry.items():
            if url_name.startswith(f"{model._meta.app_label}_{model._meta.model_name}_"):
                return model_admin
        return None

    def _keep_out(self, request: HttpRequest, view: Any, parts: Iterable[Any]) -> None:
        """Refuse who does not see all tenants a row that they do not see, whatever its page does.

        ``parts`` are those in which addresses of a page differ: the first is the key of its row.
        Raises ``Http404``, for unknown rows too, and ``PermissionDenied`` for pages that are not
        scoped.
        """
        from streaming.admin.tenancy import OfTenant, is_limited

        if not is_limited(request.user):
            return
        match = request.resolver_match
        name = match.url_name if match is not None else None
        if name in OPEN_TO_ALL_STAFF or getattr(view, "scopes_itself", False):
            return
        owner = self.owner_of(name or "")
        if not isinstance(owner, OfTenant):
            raise PermissionDenied
        for key in list(parts)[:1]:
            try:
                seen = owner.get_queryset(request).filter(pk=unquote(str(key))).exists()
            except (ValueError, ValidationError):
                seen = False
            if not seen:
                raise Http404("no such row")
