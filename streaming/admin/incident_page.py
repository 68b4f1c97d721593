"""What the page of an interruption shows: its figures, its sessions, its nodes, and words for customers.

A fixed number of queries, and a page of sessions at a time, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest

from streaming.admin.finance import finance
from streaming.core import notice
from streaming.core.outcome import Outcome, Review
from streaming.core.wording import cause_in_words
from streaming.models import Incident, StreamSession, Tenant
from streaming.services.incident_figures import (
    Group,
    IncidentFigures,
    figures_of,
    groups_of,
    history_of,
    nodes_named,
    sessions_of,
    worth_looking_into,
)

PAGE = 50

ONLY: Mapping[str, tuple[str, Q]] = {
    "": ("all", Q()),
    "noticed": ("noticed", Q(noticed=True)),
    "lost": ("lost", Q(outcome=Outcome.LOST.value)),
    "suspended": ("suspended", Q(outcome=Outcome.SUSPENDED.value)),
    "waiting": ("waiting for review", Q(review__in=[Review.NEEDED.value, Review.ASSIGNED.value])),
}


def shown(request: HttpRequest, incident: Incident) -> dict[str, Any]:
    """For the template."""
    sessions = sessions_of(incident)
    figures = figures_of(sessions)
    tenants = groups_of(sessions, "tenant_id")
    names = _names_of(tenants)
    nodes = groups_of(sessions, "interrupted_node")
    found = nodes_named([group.name for group in nodes])
    return {
        "cause": cause_in_words(incident.cause) if incident.cause else "",
        "figures": figures,
        "by_tenant": [(names.get(int(group.name)), group) for group in tenants],
        "by_model": groups_of(sessions, "model"),
        "by_node": [(found.get(group.name), group) for group in nodes],
        "events": [
            (event, ", ".join(f"{key}: {value}" for key, value in event.data.items() if value))
            for event in history_of(incident, [group.name for group in nodes if group.name])
        ],
        "finance": finance().incident_panel(request, incident),
        **_list(request, sessions),
        **_notice(request, incident, sessions, figures, names),
    }


def _names_of(groups: list[Group]) -> dict[int, Tenant]:
    return Tenant.objects.in_bulk([int(group.name) for group in groups])


def _list(request: HttpRequest, sessions: QuerySet[StreamSession]) -> dict[str, Any]:
    """One page of its sessions; ``rows`` is that of the page before the last known one."""
    only = request.GET.get("only", "")
    if only not in ONLY:
        only = ""
    try:
        page = max(int(request.GET.get("p", "1")), 1)
    except ValueError:
        page = 1
    rows = list(
        worth_looking_into(sessions)
        .filter(ONLY[only][1])
        .select_related("tenant", "looked_into__assignee")
        .defer("request", "prompt_token_ids", "evidence")[(page - 1) * PAGE : page * PAGE + 1]
    )
    return {
        "rows": rows[:PAGE],
        "page": page,
        "first": (page - 1) * PAGE + 1,
        "last": (page - 1) * PAGE + min(len(rows), PAGE),
        "has_more": len(rows) > PAGE,
        "only": only,
        "choices": [(key, words) for key, (words, _) in ONLY.items()],
    }


def _notice(
    request: HttpRequest,
    incident: Incident,
    sessions: QuerySet[StreamSession],
    figures: IncidentFigures,
    names: Mapping[int, Tenant],
) -> dict[str, Any]:
    """The text for customers: for the tenant that was chosen, with its own figures alone, or for all."""
    chosen = request.GET.get("tenant", "")
    tenant = names.get(int(chosen)) if chosen.isdecimal() and len(chosen) < 19 else None
    if tenant is not None:
        sessions = sessions.filter(tenant=tenant)
        figures = figures_of(sessions)
    amounts = finance().incident_amounts(request, sessions)
    text = notice.notice(
        notice.Hit(
            began=figures.first_at or incident.opened_at,
            ended=figures.last_at or incident.last_at or incident.opened_at,
            cause=incident.cause,
            answers=figures.recovered + figures.suspended + figures.lost,
            quiet=figures.quiet,
            paused=figures.recovered - figures.quiet,
            waiting=figures.suspended,
            lost=figures.lost,
            pause_ms=figures.gap_p95,
            charged=None if amounts is None else amounts.charged,
            credited=None if amounts is None else amounts.credited,
            whose="" if tenant is None else "your",
        )
    )
    return {"notice": text, "notice_lines": text.count("\n") + 8, "notice_tenant": tenant}
