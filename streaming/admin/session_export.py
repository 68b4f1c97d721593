"""Sessions as a CSV file, for whoever goes on with them in a spreadsheet; nothing that was said."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone

from streaming.admin.audited import actor_of
from streaming.admin.finance import Billed, finance
from streaming.core.spreadsheet import guarded
from streaming.models import Attempt, StreamSession
from streaming.services import audit

PERMISSION = "streaming.export_sessions"
MOST = 100_000
"""Sessions in one file. Of more than that nothing is exported: part of what was asked for would pass
for all of it."""
PAGE = 500
"""Sessions that are in memory at once."""

_COLUMNS = (
    "id", "reference", "tenant__name", "end_user", "request_id", "protocol", "model",
    "model_requested", "created_at", "first_token_at", "ended_at", "state", "finish_reason",
    "error_code", "cause", "outcome", "interrupted_at", "interrupted_seq", "interrupted_node",
    "interrupted_cause", "seam_grade", "gap_ms", "noticed", "incident_id", "review",
    "looked_into__ticket", "failovers", "prompt_tokens", "cached_prompt_tokens",
    "completion_tokens", "discarded_tokens", "fence__delivered_seq",
    "level", "variant", "health",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """One session: its columns, the number of its attempts, and what it was charged for."""

    columns: Mapping[str, Any]
    attempts: int
    billed: Billed | None

    @property
    def delivered(self) -> int | None:
        """Tokens, without the record that closes the log."""
        seq = self.columns["fence__delivered_seq"]
        return None if seq is None else min(seq, self.columns["completion_tokens"])


def _of(name: str) -> Callable[[_Found], Any]:
    return lambda found: found.columns[name]


_HEADED: Mapping[str, Callable[[_Found], Any]] = {
    "reference": _of("reference"),
    "session_id": _of("id"),
    "tenant": _of("tenant__name"),
    "end_user": _of("end_user"),
    "request_id": _of("request_id"),
    "protocol": _of("protocol"),
    "model": _of("model"),
    "model_requested": _of("model_requested"),
    "created_at": _of("created_at"),
    "first_token_at": _of("first_token_at"),
    "ended_at": _of("ended_at"),
    "state": _of("state"),
    "finish_reason": _of("finish_reason"),
    "error_code": _of("error_code"),
    "cause": _of("cause"),
    "outcome": _of("outcome"),
    "interrupted_at": _of("interrupted_at"),
    "interrupted_after_token": _of("interrupted_seq"),
    "interrupted_node": _of("interrupted_node"),
    "interrupted_cause": _of("interrupted_cause"),
    "seam_grade": _of("seam_grade"),
    "gap_ms": _of("gap_ms"),
    "noticed": _of("noticed"),
    "incident": _of("incident_id"),
    "review": _of("review"),
    "ticket": _of("looked_into__ticket"),
    "attempts": lambda found: found.attempts,
    "failovers": _of("failovers"),
    "prompt_tokens": _of("prompt_tokens"),
    "cached_prompt_tokens": _of("cached_prompt_tokens"),
    "answer_tokens": _of("completion_tokens"),
    "delivered_tokens": lambda found: found.delivered,
    "discarded_tokens": _of("discarded_tokens"),
    "billed_tokens": lambda found: None if found.billed is None else found.billed.tokens,
    "level": _of("level"),
    "variant": _of("variant"),
    "health": _of("health"),
}
"""The heading of each column, and what is in it."""


class WithExport(admin.ModelAdmin):
    """For admins of sessions whose lists have ``export_selected`` among their actions."""

    def has_export_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSION)


@admin.action(description="Export selected sessions (CSV)", permissions=["export"])
def export_selected(
    model_admin: Any, request: HttpRequest, queryset: QuerySet[StreamSession]
) -> HttpResponseBase | None:
    """A download of those chosen, or of all that match the filter where all were chosen.

    They are those that there are when it begins, in the order of the list; what each has come to is
    read when it is written.
    """
    chosen: list[UUID] = list(queryset.values_list("pk", flat=True)[: MOST + 1])
    if len(chosen) > MOST:
        messages.error(
            request, f"More than {MOST:,} sessions match: choose fewer, or a narrower filter."
        )
        return None
    audit.announce(
        "sessions.export", actor=actor_of(request), subject="sessions", sessions=len(chosen)
    )
    return StreamingHttpResponse(
        _blocks(chosen),
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="sessions-{timezone.now():%Y%m%dT%H%M%SZ}.csv"',
            "Cache-Control": "no-store",
        },
    )


async def _blocks(chosen: Sequence[UUID]) -> AsyncIterator[bytes]:
    # Django's handler would read a plain iterator to its end before it sent anything.
    yield _lines([list(_HEADED)])
    for first in range(0, len(chosen), PAGE):
        yield await sync_to_async(_page)(chosen[first : first + PAGE])


def _page(chosen: Sequence[UUID]) -> bytes:
    """Their lines; of a session that has gone meanwhile none."""
    found = {
        row["id"]: row for row in StreamSession.objects.filter(pk__in=chosen).values(*_COLUMNS)
    }
    attempts = dict(
        Attempt.objects.filter(session_id__in=chosen)
        .values_list("session_id")
        .annotate(count=Count("pk"))
    )
    billed = finance().billed(chosen)
    sessions = [
        _Found(found[pk], attempts.get(pk, 0), billed.get(pk)) for pk in chosen if pk in found
    ]
    return _lines([[_spelled(of(one)) for of in _HEADED.values()] for one in sessions])


def _lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _spelled(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case float():
            return f"{value:.1f}"
        case str():
            return guarded(value)
    return str(value)
