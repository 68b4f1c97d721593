"""Sessions are found by whatever somebody holds in hand, on a table of any size."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet
from django.http import HttpRequest

from streaming.admin.search import id_range, reference_prefix
from streaming.models import IdempotencyKey

MOST = 1000
"""Sessions that one term may lead to; the newest ones of an end user."""

MIN_CHARACTERS = 3
"""Of what is only a beginning; whole ones are found however short they are."""

_REFERENCE = re.compile(r"[0-9A-Z]{3}[- ]?[0-9A-Z]{0,3}", re.IGNORECASE)


def found_by(queryset: QuerySet[Any], term: str) -> list[Any]:
    """The ids of the sessions of ``queryset`` that a term may mean; one query.

    Each way has an index of its own, and PostgreSQL is asked for each by itself: in one condition
    with ``OR`` and the order of the list it may rather read the table from its newest end.
    """
    rows = queryset.order_by().select_related(None)
    ways = [
        rows.filter(end_user=term).exclude(end_user="").order_by("-created_at"),
        rows.filter(request_id=term),
        rows.filter(pk__in=IdempotencyKey.objects.filter(key=term).values("session_id")),
    ]
    if len(term) >= MIN_CHARACTERS:
        ways += [
            rows.filter(end_user__startswith=term).exclude(Q(end_user="") | Q(end_user=term)),
            rows.filter(request_id__startswith=term),
        ]
    if _REFERENCE.fullmatch(term):
        ways.append(rows.filter(reference__startswith=reference_prefix(term)))
    if between := id_range(term):
        ways.append(rows.filter(pk__range=between))
    asked = [way.values_list("pk")[:MOST] for way in ways]
    return [pk for (pk,) in asked[0].union(*asked[1:], all=True)]


class FoundList(ChangeList):
    """What was searched for is not offered by days: to find the first and the last of them, PostgreSQL
    would go through the whole table in the order of time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.query:
            self.date_hierarchy = None


class SearchSessions(admin.ModelAdmin):
    """For lists of sessions, which are ordered by one column, newest first."""

    search_fields = ["reference", "id", "request_id", "end_user"]
    search_help_text = (
        "Reference, session id, request id, end user or idempotency key. "
        "But for the last, the beginning is enough."
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return FoundList

    def get_ordering(self, request: HttpRequest) -> Any:
        """Newest first, too, where something is searched for; but by an order that no index has.

        The few that were found are then read by their ids, and sorted. PostgreSQL would otherwise
        rather go through the table from its newest end, looking for the first of them.
        """
        usual = super().get_ordering(request)
        if not request.GET.get(SEARCH_VAR, "").strip():
            return usual
        column = str(usual[0]).removeprefix("-")
        return [ExpressionWrapper(F(column) + timedelta(0), DateTimeField()).desc()]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk__in=found_by(queryset, term)), False
