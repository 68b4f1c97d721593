"""Nobody gets past who has a second factor and has not shown it, or has to have one and has none."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from django.utils.http import urlencode

from gateway_project.second_factor import devices

PAGE = "second_factor"

OPEN = frozenset({"login", "logout", "jsi18n", PAGE})
"""Pages of the admin that somebody who is logged in needs before."""

PUBLIC = frozenset({"home", "demo-nodes", "demo-kill-node"})
"""Pages that ask nobody to log in. Every other page that Django answers is behind the gate."""


def has_passed(request: HttpRequest) -> bool:
    """Whether nothing stands between somebody and the pages that they may see.

    ``request``: its user and session are all that is looked at.
    """
    user: Any = request.user
    if devices.mode() == devices.OFF or not (user.is_authenticated and user.is_staff):
        return True
    if devices.has_shown(request):
        return True
    return devices.mode() == devices.OPTIONAL and not devices.is_enrolled(user)


class SecondFactorGate(MiddlewareMixin):
    """For pages; sockets, which no middleware sees, ask ``ports.is_verified``: that is ``has_passed``."""

    def process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        match = request.resolver_match
        name = match.view_name if match is not None else ""
        if name in PUBLIC or name in {f"admin:{one}" for one in OPEN} or has_passed(request):
            return None
        there = urlencode({"next": request.get_full_path()} if request.method == "GET" else {})
        page = reverse(f"admin:{PAGE}")
        return HttpResponseRedirect(f"{page}?{there}" if there else page)
