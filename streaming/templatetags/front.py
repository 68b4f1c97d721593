"""What the admin's front page begins with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import template
from django.db.models import Count
from django.utils import timezone

from streaming.admin.badges import tone_of
from streaming.admin.interrupted import SHOWN
from streaming.admin.session_list import VIEW
from streaming.admin.tenancy import visible
from streaming.core.wording import cause_in_words, lasting
from streaming.models import InterruptedSession
from streaming.services.explaining import explain_overdue

register = template.Library()

NEWEST = 10
HOURS = 24


@register.simple_tag(takes_context=True)
def interrupted_lately(context: Mapping[str, Any]) -> dict[str, Any] | None:
    """The newest interrupted sessions of the last day, and how many there were of each outcome.

    Those that the reader of the page sees; None for who may not see sessions.
    """
    user = context["request"].user
    if not user.has_perm(VIEW):
        return None
    explain_overdue()
    since = timezone.now() - timedelta(hours=HOURS)
    sessions = visible(user, InterruptedSession.objects.filter(outcome__in=SHOWN))
    lately = sessions.filter(interrupted_at__gte=since)
    counted = dict(lately.order_by().values_list("outcome").annotate(Count("pk")))
    newest = (
        lately.select_related("tenant")
        .only(
            "id", "reference", "tenant__name", "tenant__display_name", "end_user", "model",
            "outcome", "interrupted_at", "interrupted_seq", "interrupted_cause",
            "interrupted_node", "gap_ms", "noticed", "review",
        )
        .order_by("-interrupted_at")[:NEWEST]
    )  # fmt: skip
    return {
        "hours": HOURS,
        "counts": [(word, tone_of(word), counted.get(word, 0)) for word in reversed(SHOWN)],
        "newest": [_line(session) for session in newest],
    }


def _line(session: InterruptedSession) -> dict[str, Any]:
    where = f" on {session.interrupted_node}" if session.interrupted_node else ""
    return {
        "session": session,
        "tone": tone_of(session.outcome),
        "cause": f"{cause_in_words(session.interrupted_cause)}{where}",
        "gap": "-" if session.gap_ms is None else lasting(session.gap_ms),
    }
