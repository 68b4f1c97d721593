"""What all lists of sessions have in common that find them by something that happened."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

VIEW = "streaming.view_streamsession"


class OfSessions:
    """A list of sessions beside the plain one: for who may see sessions, and leading to their page."""

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """There is one page of a session, however it was found."""
        return HttpResponseRedirect(
            reverse("admin:streaming_streamsession_change", args=[object_id])
        )

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(VIEW)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(VIEW)

    @admin.display(description="session")
    def session_link(self, session: Any) -> SafeString:
        url = reverse("admin:streaming_streamsession_change", args=[session.pk])
        return format_html('<a class="unbroken-id" href="{}">{}</a>', url, session.reference)

    @admin.display(description="tenant, end user")
    def who(self, session: Any) -> SafeString:
        tenant, user = clipped(str(session.tenant)), clipped(session.end_user)
        return format_html("{}<br>{}", tenant, user)


def clipped(words: str) -> SafeString:
    """What others have named, on one line however long it is; whole for who points at it."""
    return format_html('<span class="unbroken-clip" title="{}">{}</span>', words, words or "-")
