"""What is done to sessions at the support desk: above a session's page, and to those chosen in a list.

Each has a page that first says what will happen to every one of them. ``WithSessionTools`` gives an
admin of sessions all of it: links, actions, addresses and the permissions that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from streaming.admin.audited import actor_of
from streaming.admin.finance import finance
from streaming.admin.pages import Tool, WithPages
from streaming.admin.review_forms import AssignForm, DeskForm, ReviewForm
from streaming.admin.session_export import WithExport, export_selected
from streaming.admin.tenancy import may_see, scopes_itself
from streaming.core.outcome import Review
from streaming.models import StreamSession
from streaming.services import retention, reviews, session_actions
from streaming.services.refused import Refused
from streaming.services.session_actions import Standing

MOST_AT_ONCE = 100
MANY = f"At most {MOST_AT_ONCE} sessions at once."

STOP = "streaming.stop_session"
CONTINUE = "streaming.continue_session"
REVIEW = reviews.PERMISSION
PURGE = "streaming.purge_content"

Act = Callable[[HttpRequest, StreamSession, Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that may be done to sessions.

    ``effect``: what it will do to one, and whether it can be done at all. ``offered``: whether there
    is a link to it above such a session. ``done``: in the session's history.
    """

    name: str
    words: str
    permission: str
    lead: str
    done: str
    act: Act
    effect: Callable[[StreamSession, Standing | None], tuple[str, bool]]
    offered: Callable[[StreamSession, Standing | None], bool]
    form: type[DeskForm] = DeskForm


def _stopped(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if standing is None or (against := standing.against_stopping):
        return against if standing else "is not there any more", False
    if standing.suspended:
        return "it is suspended, and ends at once", True
    return "its answer ends where it is then, within a second or two", True


def _continued(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if standing is None or (against := standing.against_continuing):
        return against if standing else "is not there any more", False
    return f"goes on after token {session.completion_tokens} on any node, without its reader", True


def _assigned(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if session.review == Review.REVIEWED.value:
        return "was reviewed: it has to be reopened first", False
    return f"{_looked_into(session)} so far", True


def _reviewed(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if session.review == Review.REVIEWED.value:
        return "was reviewed already", False
    return f"will be marked reviewed; {_looked_into(session)} so far", True


def _reopened(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if session.review != Review.REVIEWED.value:
        return "was not reviewed", False
    return "has to be looked into again; note and ticket stay", True


def _assign(request: HttpRequest, session: StreamSession, said: Mapping[str, Any]) -> None:
    user = said["assignee"]
    if user is not None and not may_see(user, session.tenant_id):
        raise Refused(f"{user} does not see the tenant of {session.reference}.")
    reviews.assign(session.pk, user=user, by=actor_of(request))


def _purged(session: StreamSession, standing: Standing | None) -> tuple[str, bool]:
    if standing is None:
        return "is not there any more", False
    if standing.purged:
        return "was purged before", False
    if not standing.ended:
        return "has not ended: it has to be stopped first", False
    return "its request and its answer are forgotten", True


def _looked_into(session: StreamSession) -> str:
    review = getattr(session, "looked_into", None)
    if review is None or review.assignee is None:
        return "nobody looks into it"
    return f"{review.assignee} looks into it"


def _may_stop(session: StreamSession, standing: Standing | None) -> bool:
    return standing is not None and not standing.against_stopping


def _may_continue(session: StreamSession, standing: Standing | None) -> bool:
    return standing is not None and not standing.against_continuing


def _may_purge(session: StreamSession, standing: Standing | None) -> bool:
    return session.ended_at is not None and session.purged_at is None


def _is_reviewed(session: StreamSession, standing: Standing | None = None) -> bool:
    return session.review == Review.REVIEWED.value


def _is_not_reviewed(session: StreamSession, standing: Standing | None) -> bool:
    return not _is_reviewed(session)


DEEDS = {
    deed.name: deed
    for deed in (
        Deed(
            "stop", "Stop", STOP,
            "Nothing more is written of these answers, and they cannot be continued. Their readers "
            "are told that they were stopped.",
            "Stopped.",
            lambda request, session, said: session_actions.stop(
                session.pk, by=actor_of(request)
            ),
            _stopped, _may_stop,
        ),
        Deed(
            "continue", "Continue now", CONTINUE,
            "The rest of these answers is written to its end although nobody reads it: their readers "
            "find it when they come back. Only what reaches them is charged.",
            "To be continued.",
            lambda request, session, said: session_actions.continue_now(
                session.pk, by=actor_of(request)
            ),
            _continued, _may_continue,
        ),
        Deed(
            "take", "Assign to me", REVIEW,
            "You look into these sessions. Nobody loses one by it: what somebody else has stays theirs.",
            "Assigned.",
            lambda request, session, said: reviews.take(
                session.pk, user=cast(User, request.user), by=actor_of(request)
            ),
            _assigned, _is_not_reviewed,
        ),
        Deed(
            "assign", "Assign", REVIEW,
            "Whoever looks into these sessions now does so no longer.",
            "Assigned.",
            _assign,
            _assigned, _is_not_reviewed, AssignForm,
        ),
        Deed(
            "review", "Mark reviewed", REVIEW,
            "What was found, for whoever comes across them next.",
            "Reviewed.",
            lambda request, session, said: reviews.mark_reviewed(
                session.pk, note=said["note"], ticket=said["ticket"], by=actor_of(request)
            ),
            _reviewed, _is_not_reviewed, ReviewForm,
        ),
        Deed(
            "reopen", "Reopen", REVIEW,
            "These sessions wait for somebody again.",
            "Reopened.",
            lambda request, session, said: reviews.reopen(session.pk, by=actor_of(request)),
            _reopened, _is_reviewed,
        ),
        Deed(
            "purge", "Purge content", PURGE,
            "What was asked and answered in these sessions goes at once, and cannot be had back. Their "
            "figures stay, and their readers are told that it is gone.",
            "Content purged.",
            lambda request, session, said: retention.purge_session(
                session.pk, by=actor_of(request)
            ),
            _purged, _may_purge,
        ),
    )
}  # fmt: skip


def tools(request: HttpRequest, session: StreamSession) -> list[Tool]:
    """The links above a session's page: what this person may do to it, as it is."""
    standing = None
    if session.ended_at is None:
        standing = session_actions.standings([session.pk]).get(session.pk)
    found = [
        Tool(f"{deed.words}…", deed_page(deed.name, [session.pk]))
        for deed in DEEDS.values()
        if request.user.has_perm(deed.permission) and deed.offered(session, standing)
    ]
    return [*found, *finance().session_tools(request, session)]


def deed_page(name: str, session_ids: Sequence[UUID]) -> str:
    """Where it is asked whether that shall be done to them."""
    query = urlencode({"session": [str(one) for one in session_ids]}, doseq=True)
    return f"{reverse('admin:streaming_streamsession_do', args=[name])}?{query}"


def urls(model_admin: admin.ModelAdmin) -> list[URLPattern]:
    """The pages of all deeds; for the admin that has all sessions."""

    @scopes_itself
    def view(request: HttpRequest, name: str) -> HttpResponse:
        return _deed_view(model_admin, request, name)

    wrapped = model_admin.admin_site.admin_view(scopes_itself(view))
    return [path("do/<str:name>/", wrapped, name="streaming_streamsession_do")]


class WithSessionTools(WithExport, WithPages):
    """For the admins of sessions. ``add_pages``: exactly one of them has the pages."""

    add_pages = False
    actions: Any = ()

    def has_stop_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(STOP)

    def has_continue_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CONTINUE)

    def has_purge_content_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PURGE)

    def has_review_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(REVIEW)

    def get_urls(self) -> list[Any]:
        return [*(urls(self) if self.add_pages else []), *super().get_urls()]

    def tools(self, request: HttpRequest, obj: Any) -> Sequence[Tool]:
        return tools(request, obj)


def _deed_view(model_admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    """What would become of each; and once somebody has said yes, what has."""
    deed = DEEDS.get(name)
    if deed is None:
        raise Http404("nothing that can be done")
    if not request.user.has_perm(deed.permission):
        raise PermissionDenied
    sessions = _chosen(model_admin, request)
    back = _way_back(sessions)
    form = deed.form(request.POST if request.method == "POST" else None, user=request.user)
    if request.method == "POST" and form.is_valid():
        for session in sessions:
            try:
                deed.act(request, session, form.cleaned_data)
            except Refused as refusal:
                messages.error(request, str(refusal))
            else:
                model_admin.log_change(request, session, deed.done)
                messages.success(request, f"{session.reference}: {deed.done}")
        return HttpResponseRedirect(back)
    standings = session_actions.standings([session.pk for session in sessions])
    effects = [(session, *deed.effect(session, standings.get(session.pk))) for session in sessions]
    return model_admin.page(
        request,
        "admin/streaming/do.html",
        deed.words,
        sessions[0] if len(sessions) == 1 else None,
        lead=deed.lead,
        effects=effects,
        possible=any(possible for _, _, possible in effects),
        form=form,
        button=deed.words,
        back=back,
    )


def _chosen(model_admin: Any, request: HttpRequest) -> list[StreamSession]:
    """Those that the address names and that this person may see. Raises ``Http404`` for none."""
    try:
        wanted = [UUID(one) for one in request.GET.getlist("session")][:MOST_AT_ONCE]
    except ValueError as exc:
        raise Http404("no such session") from exc
    found: QuerySet[StreamSession] = (
        model_admin.get_queryset(request)
        .filter(pk__in=wanted)
        .select_related("tenant", "looked_into__assignee")
    )
    sessions = {session.pk: session for session in found}
    if not sessions:
        raise Http404("no such session")
    return [sessions[pk] for pk in dict.fromkeys(wanted) if pk in sessions]


def _way_back(sessions: Sequence[StreamSession]) -> str:
    if len(sessions) == 1:
        return reverse("admin:streaming_streamsession_change", args=[sessions[0].pk])
    return reverse("admin:streaming_streamsession_changelist")


def _list_action(deed: Deed) -> Callable[..., HttpResponse | None]:
    """Takes the chosen sessions to the page of the deed."""

    @admin.action(
        description=f"{deed.words}: selected sessions…",
        permissions=[deed.permission.partition(".")[2].removesuffix("_session")],
    )
    def action(
        model_admin: Any, request: HttpRequest, queryset: QuerySet[StreamSession]
    ) -> HttpResponse | None:
        chosen = list(queryset.values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
        if len(chosen) > MOST_AT_ONCE:
            messages.error(request, MANY)
            return None
        return HttpResponseRedirect(deed_page(deed.name, chosen))

    action.__name__ = f"{deed.name}_selected"
    return action


ACTIONS = [*(_list_action(deed) for deed in DEEDS.values()), export_selected]
