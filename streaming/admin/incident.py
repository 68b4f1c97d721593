"""Incidents: opened and closed by the machine, read by people.

An interruption stands for the sessions that one cause has hit in one moment; its page is about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse

from streaming.admin.audited import actor_of
from streaming.admin.finance import finance
from streaming.admin.incident_page import shown
from streaming.admin.pages import Tool, WithPages
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.review_forms import AssignForm, DeskForm, ReviewForm
from streaming.admin.tenancy import OfFleet, is_limited
from streaming.models import Incident
from streaming.services import incidents, reviews
from streaming.services.incident_figures import INTERRUPTION, sessions_of
from streaming.services.refused import Refused

CHANGE = "streaming.change_incident"


class Open(admin.SimpleListFilter):
    """Whether it goes on."""

    title = "state"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Open"), ("no", "Closed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(closed_at__isnull=self.value() == "yes")


class AssignAllForm(AssignForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["assignee"].required = True


@dataclass(frozen=True, slots=True)
class Deed:
    """What may be done about an incident. ``act`` says in words what it has done."""

    words: str
    permission: str
    lead: str
    act: Callable[[HttpRequest, Incident, dict[str, Any]], str]
    offered: Callable[[Incident], bool]
    form: type[DeskForm] = DeskForm


def _assign_all(request: HttpRequest, incident: Incident, said: dict[str, Any]) -> str:
    user = said["assignee"]
    if is_limited(user):
        raise Refused(f"{user} does not see all tenants: assign single sessions.")
    done = reviews.assign_all(sessions_of(incident), incident, user=user, by=actor_of(request))
    return f"{user} looks into {_sessions(done)}."


def _take_all(request: HttpRequest, incident: Incident, said: dict[str, Any]) -> str:
    return _assign_all(request, incident, {"assignee": cast(User, request.user)})


def _review_all(request: HttpRequest, incident: Incident, said: dict[str, Any]) -> str:
    done = reviews.review_all(
        sessions_of(incident),
        incident,
        note=said["note"],
        ticket=said["ticket"],
        by=actor_of(request),
    )
    return f"{_sessions(done)} marked reviewed."


def _close(request: HttpRequest, incident: Incident, said: dict[str, Any]) -> str:
    incidents.close_by_hand(incident.pk, by=actor_of(request))
    return "Closed."


def _reopen(request: HttpRequest, incident: Incident, said: dict[str, Any]) -> str:
    incidents.reopen_by_hand(incident.pk, by=actor_of(request))
    return "Open again."


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count:,} sessions"


def _is_interruption(incident: Incident) -> bool:
    return incident.kind == INTERRUPTION


DEEDS = {
    "take": Deed(
        "Assign to me",
        reviews.PERMISSION,
        "You look into those of its sessions that nobody looks into yet.",
        _take_all,
        _is_interruption,
    ),
    "assign": Deed(
        "Assign",
        reviews.PERMISSION,
        "Who shall look into those of its sessions that nobody looks into yet?",
        _assign_all,
        _is_interruption,
        AssignAllForm,
    ),
    "review": Deed(
        "Mark all reviewed",
        reviews.PERMISSION,
        "What was found; it is noted with each of its sessions that waits for it.",
        _review_all,
        _is_interruption,
        ReviewForm,
    ),
    "close": Deed(
        "Close",
        CHANGE,
        "It is over. Where it is not, whoever has opened it opens another one.",
        _close,
        lambda incident: not _is_interruption(incident) and incident.closed_at is None,
    ),
    "reopen": Deed(
        "Reopen",
        CHANGE,
        "It is not over after all. Whoever has opened it closes it again when it is.",
        _reopen,
        lambda incident: not _is_interruption(incident) and incident.closed_at is not None,
    ),
}


@admin.register(Incident)
class IncidentAdmin(WithPages, OfFleet, ReadOnlyAdmin):
    change_form_template = "admin/streaming/incident.html"
    list_display = ["id", "kind", "subject", "node", "opened_at", "closed_at"]
    list_select_related = ["node"]
    list_filter = [Open, "kind"]
    fields = ["kind", "subject", "node", "session_id", "opened_at", "closed_at", "data"]

    class Media:
        css = {"all": ["streaming/desk/incident.css"]}
        js = [forms.Script("streaming/desk/copy.js", type="module")]

    def get_fields(self, request: HttpRequest, obj: Incident | None = None) -> Any:
        # What an interruption is, its page says.
        return [] if obj is not None and _is_interruption(obj) else self.fields

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None and _is_interruption(obj):
            context.update(shown(request, obj))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def tools(self, request: HttpRequest, obj: Incident) -> list[Tool]:
        found = [
            Tool(f"{deed.words}…", deed_page(obj, name))
            for name, deed in DEEDS.items()
            if request.user.has_perm(deed.permission) and deed.offered(obj)
        ]
        return [*found, *finance().incident_tools(request, obj)]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.deed_view)
        return [
            path("<int:incident_id>/do/<str:name>/", view, name="streaming_incident_do"),
            *super().get_urls(),
        ]

    def deed_view(self, request: HttpRequest, incident_id: int, name: str) -> HttpResponse:
        """Ask, and once somebody has said yes do it."""
        deed = DEEDS.get(name)
        if deed is None:
            raise Http404("nothing that can be done")
        if not (request.user.has_perm(deed.permission) and self.has_view_permission(request)):
            raise PermissionDenied
        incident = get_object_or_404(self.get_queryset(request), pk=incident_id)
        if not deed.offered(incident):
            raise Http404("nothing that can be done to this one")
        back = reverse("admin:streaming_incident_change", args=[incident.pk])
        form = deed.form(request.POST if request.method == "POST" else None, user=request.user)
        if request.method == "POST" and form.is_valid():
            try:
                done = deed.act(request, incident, form.cleaned_data)
            except Refused as refusal:
                messages.error(request, str(refusal))
            else:
                self.log_change(request, incident, done)
                messages.success(request, done)
            return HttpResponseRedirect(back)
        return self.page(
            request,
            "admin/streaming/do_incident.html",
            deed.words,
            incident,
            lead=deed.lead,
            form=form,
            possible=True,
            button=deed.words,
            back=back,
        )


def deed_page(incident: Incident, name: str) -> str:
    """Where it is asked whether that shall be done."""
    return reverse("admin:streaming_incident_do", args=[incident.pk, name])
