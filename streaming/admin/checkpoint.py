"""The token log, row by row; without its text, which is content."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession, id_range
from streaming.admin.tenancy import OfSession
from streaming.models import StreamSession, TokenCheckpoint

SESSIONS = 20
"""As many as are looked up by how their id begins."""


@admin.register(TokenCheckpoint)
class TokenCheckpointAdmin(OfSession, ReadOnlyAdmin, SearchBySession):
    """Rows of the sessions that are searched for, and no others, on the page of one row too: only by
    their session are they found without a look at every partition."""

    list_display = ["id", "session_link", "first_seq", "last_seq", "attempt", "epoch", "created_at"]
    ordering = ["session", "first_seq"]
    fields = [
        "session_link", "first_seq", "last_seq", "attempt", "epoch", "closes", "digest_hex",
        "created_at",
    ]  # fmt: skip
    readonly_fields = ["session_link", "closes", "digest_hex"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[TokenCheckpoint]:
        rows: QuerySet[TokenCheckpoint] = super().get_queryset(request)
        between = id_range(_searched_for(request))
        if between is None:
            return rows.none()
        found = list(
            StreamSession.objects.filter(pk__gte=between[0], pk__lte=between[1]).values_list(
                "pk", "expires_on"
            )[:SESSIONS]
        )
        return rows.filter(
            session__in=[pk for pk, _ in found], expires_on__in={day for _, day in found}
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False  # they are all found

    @admin.display(description="closes the log", boolean=True)
    def closes(self, row: TokenCheckpoint) -> bool:
        return row.terminal is not None

    @admin.display(description="digest")
    def digest_hex(self, row: TokenCheckpoint) -> str:
        return bytes(row.digest).hex()


def _searched_for(request: HttpRequest) -> str:
    """In the list, or in the list from which a row's page was opened."""
    query = request.GET.get("q") or QueryDict(request.GET.get("_changelist_filters", "")).get("q")
    return (query or "").strip()
