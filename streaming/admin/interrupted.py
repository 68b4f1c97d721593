"""The sessions that something interrupted, newest first: what support staff begin with."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from streaming.admin import session_tools
from streaming.admin.badges import badge
from streaming.admin.days import SparseDates
from streaming.admin.filters import ByTenant, WithRowFilters
from streaming.admin.finance import finance
from streaming.admin.read_only import EstimatingPaginator, ReadOnlyAdmin
from streaming.admin.session_list import OfSessions, clipped
from streaming.admin.session_search import FoundList, SearchSessions
from streaming.admin.session_tools import WithSessionTools
from streaming.admin.tenancy import OfTenant, is_limited
from streaming.admin.times import local
from streaming.core.attribution import Blame
from streaming.core.connection_health import Band, band_of
from streaming.core.outcome import INTERRUPTED, Outcome, Review
from streaming.core.wording import cause_in_words, lasting
from streaming.models import InterruptedSession
from streaming.services.explaining import explain_overdue

VIEW_INCIDENT = "streaming.view_incident"
SHOWN = [outcome.value for outcome in INTERRUPTED]
MOST_VALUES = 100


class ByOutcome(admin.SimpleListFilter):
    """Whoever merely left is hidden until somebody asks for them."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        words = [(outcome.value, outcome.value.capitalize()) for outcome in Outcome]
        return [*words, ("all", "With those who left")]

    def choices(self, changelist: Any) -> Any:
        first, *others = super().choices(changelist)
        yield {**first, "display": "Interrupted"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == "all":
            return queryset.exclude(outcome="")
        return queryset.filter(outcome=value) if value else queryset.filter(outcome__in=SHOWN)


class ByBlame(admin.SimpleListFilter):
    title = "cause"
    parameter_name = "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(blame.value, cause_in_words(blame.value)) for blame in Blame]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(interrupted_cause=value) if value else queryset


class ByColumn(admin.SimpleListFilter):
    """The values that a column has among interrupted sessions, by its index."""

    column: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        if is_limited(request.user):  # what others have is none of their business
            own = model_admin.get_queryset(request).exclude(outcome="").order_by(self.column)
            found = own.values_list(self.column, flat=True).distinct()[:MOST_VALUES]
        else:
            found = values_of(self.column)
        return [(value, value) for value in found if value]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.column: self.value()}) if self.value() else queryset


class ByNode(ByColumn):
    title = "node"
    parameter_name = "node"
    column = "interrupted_node"


class ByModel(ByColumn):
    title = "model"
    parameter_name = "model"
    column = "model"


class Noticed(admin.SimpleListFilter):
    title = "reader noticed"
    parameter_name = "noticed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Noticed"), ("no", "Not noticed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(noticed=self.value() == "yes") if self.value() else queryset


class ByHealth(admin.SimpleListFilter):
    """By the lowest score of the connections that it was read on."""

    title = "network"
    parameter_name = "network"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(band.value, band.value.capitalize()) for band in Band]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case Band.GOOD.value:
                return queryset.filter(health__gte=Band.GOOD.floor)
            case Band.FAIR.value:
                return queryset.filter(health__gte=Band.FAIR.floor, health__lt=Band.GOOD.floor)
            case Band.WEAK.value:
                return queryset.filter(health__lt=Band.FAIR.floor)
        return queryset


class ByReview(admin.SimpleListFilter):
    title = "review"
    parameter_name = "review"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (Review.NEEDED.value, "Needs review"), ("mine", "Mine"),
            (Review.ASSIGNED.value, "Assigned"), (Review.REVIEWED.value, "Reviewed"),
        ]  # fmt: skip

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == "mine":
            mine = queryset.filter(review=Review.ASSIGNED.value)
            return mine.filter(looked_into__assignee=request.user.pk)
        return queryset.filter(review=value) if value else queryset


# From each value to the next greater one: as many steps as there are values.
_VALUES = """
WITH RECURSIVE found AS (
    (SELECT {column} AS value FROM streaming_streamsession WHERE outcome <> ''
        ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT s.{column} FROM streaming_streamsession s
        WHERE s.outcome <> '' AND s.{column} > found.value ORDER BY s.{column} LIMIT 1)
    FROM found WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL LIMIT %s
"""


def values_of(column: str) -> list[str]:
    """The different values of a column, led by its index; ``column`` is one of ours."""
    with connection.cursor() as cursor:
        cursor.execute(_VALUES.format(column=column), [MOST_VALUES])
        return [value for (value,) in cursor.fetchall()]


class QuickPaginator(EstimatingPaginator):
    """The interrupted ones lie scattered over their table: to count them is to read as many pages."""

    exact_up_to = 5_000


class InterruptedList(FoundList):
    """Asks once for what the sessions of the page were charged, and where it may lead."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        shown = self.result_list = list(self.result_list)
        billed = finance().billed([session.pk for session in shown]) if shown else {}
        leads_on = request.user.has_perm(VIEW_INCIDENT) and not is_limited(request.user)
        for session in shown:
            session.billed = billed.get(session.pk)
            session.leads_on = leads_on


@admin.register(InterruptedSession)
class InterruptedSessionAdmin(
    OfTenant,
    SearchSessions,
    WithRowFilters,
    WithSessionTools,
    OfSessions,
    ReadOnlyAdmin,
):
    actions = session_tools.ACTIONS
    list_display = [
        "session_link", "who", "model_shown", "when", "outcome_badge", "cause_shown",
        "at_token", "seam", "gap", "billed", "review_shown",
    ]  # fmt: skip
    list_display_links = None
    list_select_related = ["tenant", "looked_into__assignee"]
    list_filter = [
        ByOutcome, ByReview, Noticed, ByBlame, ByNode, ByModel, ByHealth, ByTenant,
    ]  # fmt: skip
    sortable_by = ["when"]
    paginator = QuickPaginator
    date_hierarchy = "interrupted_at"
    ordering = ["-interrupted_at"]

    class Media:
        css = {"all": ["streaming/desk/interrupted.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        large = ("request", "prompt_token_ids", "evidence", "log_digest")
        return SparseDates(self.model, rows.query).defer(*large)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return InterruptedList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        explain_overdue()
        # The list is wide: it takes the room of the navigation, too.
        context = {"title": "Interrupted sessions", "is_nav_sidebar_enabled": False}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    @admin.display(description="model")
    def model_shown(self, session: Any) -> SafeString:
        return clipped(session.model)

    @admin.display(ordering="interrupted_at", description="when")
    def when(self, session: Any) -> SafeString:
        day, _, time = local(session.interrupted_at).partition(" ")
        return format_html("{}<br>{}", day, time)

    @admin.display(description="outcome")
    def outcome_badge(self, session: Any) -> SafeString | str:
        return badge(session.outcome)

    @admin.display(description="cause")
    def cause_shown(self, session: Any) -> SafeString | str:
        words = cause_in_words(session.interrupted_cause) or "-"
        where = f" ({session.interrupted_node})" if session.interrupted_node else ""
        if session.incident_id is None or not session.leads_on:
            return f"{words}{where}"
        url = reverse("admin:streaming_incident_change", args=[session.incident_id])
        return format_html('<a href="{}">{}</a>{}', url, words, where)

    @admin.display(description="at token")
    def at_token(self, session: Any) -> SafeString:
        return _figure("-" if session.interrupted_seq is None else f"{session.interrupted_seq:,}")

    @admin.display(description="seam")
    def seam(self, session: Any) -> SafeString | str:
        return badge(session.seam_grade)

    @admin.display(description="gap")
    def gap(self, session: Any) -> SafeString:
        if session.gap_ms is None:
            return _figure("-")
        lines = [lasting(session.gap_ms)]
        if session.noticed:
            lines.append("noticed")
        if session.health is not None and band_of(session.health) is not Band.GOOD:
            lines.append(f"{band_of(session.health).value} network")
        return format_html_join(mark_safe("<br>"), "{}", ((line,) for line in lines))

    @admin.display(description="billed")
    def billed(self, session: Any) -> SafeString:
        return _figure("-" if session.billed is None else f"{session.billed.tokens:,}")

    @admin.display(description="review")
    def review_shown(self, session: Any) -> SafeString | str:
        shown = badge(session.review)
        assignee = getattr(getattr(session, "looked_into", None), "assignee", None)
        return format_html("{} {}", shown, assignee) if assignee is not None else shown


def _figure(words: str) -> SafeString:
    return format_html('<span class="unbroken-number">{}</span>', words)
