"""Searching large tables by what people hold in hand, with the help of their indexes."""

from __future__ import annotations

import re
from uuid import UUID

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

MIN_ID_CHARACTERS = 8
HEX_DIGITS = 32


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """The session ids that begin so; None when ``term`` is not the beginning of one.

    Takes them as clients see them too: ``chatcmpl-`` and 32 hexadecimal digits.
    """
    digits = term.lower().removeprefix("chatcmpl-").replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_ID_CHARACTERS},{HEX_DIGITS}}}", digits):
        return None
    return UUID(digits.ljust(HEX_DIGITS, "0")), UUID(digits.ljust(HEX_DIGITS, "f"))


def reference_prefix(term: str) -> str:
    """A reference as stored, from what somebody typed: ``k7q4mx`` is ``K7Q-4MX``."""
    letters = term.upper().replace("-", "").replace(" ", "")
    return f"{letters[:3]}-{letters[3:]}" if len(letters) > 3 else letters


class SearchBySession(admin.ModelAdmin):
    """For tables of sessions' rows: search by the session's id, and link to its page."""

    session_column = "session_id"
    search_fields = ["session_id"]
    search_help_text = "The session’s id, or how it begins (8 characters or more)."

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        between = id_range(term)
        if between is None:
            return queryset.none(), False
        first, last = between
        column = self.session_column  # maybe a foreign key, which has no range
        return queryset.filter(**{f"{column}__gte": first, f"{column}__lte": last}), False

    @admin.display(description="session")
    def session_link(self, row: Model) -> SafeString:
        session_id = getattr(row, self.session_column)
        url = reverse("admin:streaming_streamsession_change", args=[session_id])
        return format_html('<a href="{}">{}</a>', url, session_id)
