"""Sessions are found by whatever somebody holds in hand, on a table of any size."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
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


class SearchSessions(admin.ModelAdmin):
    """For lists of sessions."""

    search_fields = ["reference", "id", "request_id", "end_user"]
    search_help_text = (
        "Reference, session id, request id, end user or idempotency key. "
        "But for the last, the beginning is enough."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk__in=found_by(queryset, term)), False
