"""The live board: what goes on now, on one page that renews itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache

from streaming.admin.badges import CIRCUIT
from streaming.admin.pages import require
from streaming.admin.tenancy import scopes_itself, tenants_of
from streaming.admin.times import zone_name
from streaming.services.live_board import board

PERMISSION = "streaming.watch_live_board"
LINKED = {
    "session": "streamsession",
    "incident": "incident",
    "node": "inferencenode",
}
"""What the board names, and the tables with a page of each."""


@scopes_itself
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """The board as it is now; the script that comes along keeps it so."""
    require(request, PERMISSION)
    shown = board.current(tenants_of(request.user))
    context = {
        **admin.site.each_context(request),
        "title": "Live board",
        "board": shown,
        "newest": [{**one, "at": datetime.fromisoformat(one["at"])} for one in shown["newest"]],
        "incidents": [
            {**one, "opened": datetime.fromisoformat(one["opened"])} for one in shown["incidents"]
        ],
        "at": datetime.fromisoformat(shown["at"]),
        "links": _links(request),
        "circuit_tones": CIRCUIT,
        "zone": zone_name(),
    }
    return TemplateResponse(request, "admin/streaming/live.html", context)


@scopes_itself
@never_cache
def data(request: HttpRequest) -> HttpResponse:
    """The same figures for the script, where it gets no socket."""
    require(request, PERMISSION)
    return JsonResponse(board.current(tenants_of(request.user)))


def _links(request: HttpRequest) -> dict[str, Any]:
    """Where the viewer may go from here: URLs with 0 for the id."""
    return {
        name: reverse(f"admin:streaming_{table}_change", args=[0])
        for name, table in LINKED.items()
        if request.user.has_perm(f"streaming.view_{table}")
    }
