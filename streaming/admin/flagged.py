"""The review queue of content rules: sessions that were flagged, or ended, newest first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from streaming.admin import session_tools
from streaming.admin.badges import badge
from streaming.admin.days import SparseDates
from streaming.admin.filters import ByTenant, OneOf, WithRowFilters
from streaming.admin.interrupted import ByReview, QuickPaginator
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.session_list import OfSessions, clipped
from streaming.admin.session_search import FoundList, SearchSessions
from streaming.admin.session_tools import WithSessionTools
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local
from streaming.models import FlaggedSession


class ByAction(OneOf):
    """Sessions in which nothing was found are never shown."""

    title = "action"
    parameter_name = "content_action"
    values = [("stop", "Ended by a rule"), ("flag", "Flagged")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return super().queryset(request, queryset.exclude(content_action=""))


@admin.register(FlaggedSession)
class FlaggedSessionAdmin(
    OfTenant, SearchSessions, WithRowFilters, WithSessionTools, OfSessions, ReadOnlyAdmin
):
    actions = session_tools.ACTIONS
    list_display = [
        "session_link",
        "who",
        "model_shown",
        "when",
        "action_badge",
        "rule",
        "review_shown",
    ]
    list_display_links = None
    list_select_related = ["tenant", "looked_into__assignee"]
    list_filter = [ByReview, ByAction, ByTenant]
    sortable_by = ["when"]
    paginator = QuickPaginator
    date_hierarchy = "created_at"
    ordering = ["-created_at"]

    class Media:
        css = {"all": ["streaming/desk/interrupted.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        large = ("request", "prompt_token_ids", "evidence", "log_digest")
        return SparseDates(self.model, rows.query).defer(*large)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return FoundList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"title": "Sessions with findings of content rules"}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    @admin.display(description="model")
    def model_shown(self, session: Any) -> SafeString:
        return clipped(session.model)

    @admin.display(ordering="created_at", description="when")
    def when(self, session: Any) -> str:
        return local(session.created_at)

    @admin.display(description="action")
    def action_badge(self, session: Any) -> SafeString | str:
        words = {"stop": "ended", "flag": "flagged"}
        tones = {"stop": "bad", "flag": "warn"}
        action = session.content_action
        return badge(words.get(action, action), tones.get(action, ""))

    @admin.display(description="rule")
    def rule(self, session: Any) -> SafeString:
        return clipped(session.content_rule)

    @admin.display(description="review")
    def review_shown(self, session: Any) -> SafeString | str:
        shown = badge(session.review)
        assignee = getattr(getattr(session, "looked_into", None), "assignee", None)
        return format_html("{} {}", shown, assignee) if assignee is not None else shown
