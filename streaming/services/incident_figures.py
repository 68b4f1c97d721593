"""What an incident has come to: counted over its sessions, however many they are, by the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Aggregate,
    Case,
    CharField,
    Count,
    F,
    FloatField,
    Max,
    Min,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Concat

from streaming.core.outcome import INTERRUPTED, Outcome, Review
from streaming.models import Attempt, Incident, InferenceNode, NodeEvent, StreamSession

INTERRUPTION = "interruption"
"""The kind of incidents that stand for sessions which one cause has hit in one moment."""

MOST_GROUPS = 20
MOST_EVENTS = 50
AROUND = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Group:
    """The sessions that have one thing in common."""

    name: str
    sessions: int
    noticed: int
    lost: int


@dataclass(frozen=True, slots=True)
class IncidentFigures:
    """``readers``: end users, each once; a session without one is a reader of its own.

    ``quiet``: went on, and nobody can have noticed. Gaps in milliseconds, beyond the usual pace;
    None: no session has one. ``discarded`` and ``repeated``: tokens that engines wrote for nobody.
    """

    sessions: int
    readers: int
    noticed: int
    quiet: int
    recovered: int
    suspended: int
    lost: int
    gap_p50: float | None
    gap_p95: float | None
    first_at: datetime | None
    last_at: datetime | None
    waiting: int
    assigned: int
    reviewed: int
    discarded: int
    repeated: int

    @property
    def wasted(self) -> int:
        return self.discarded + self.repeated


class Percentile(Aggregate):
    function = "percentile_cont"
    template = "%(function)s(%(fraction)s) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = FloatField()

    def __init__(self, expression: str, fraction: float) -> None:
        super().__init__(expression, fraction=float(fraction))


def sessions_of(incident: Incident) -> QuerySet[StreamSession]:
    """All that it has hit, of all tenants."""
    return StreamSession.objects.filter(incident=incident)


def figures_of(sessions: QuerySet[StreamSession]) -> IncidentFigures:
    """Of those of an incident's sessions that somebody may see. Two queries."""
    reader = Case(
        When(end_user="", then=Cast("pk", CharField())),
        default=Concat(Cast("tenant_id", CharField()), Value(":"), F("end_user")),
    )
    # Named apart from the columns, which they would hide.
    counted: dict[str, Any] = sessions.order_by().aggregate(
        all_sessions=Count("pk"),
        all_readers=Count(reader, distinct=True),
        all_noticed=Count("pk", filter=Q(noticed=True)),
        all_quiet=Count("pk", filter=_came_to(Outcome.RECOVERED) & Q(noticed=False)),
        all_recovered=Count("pk", filter=_came_to(Outcome.RECOVERED)),
        all_suspended=Count("pk", filter=_came_to(Outcome.SUSPENDED)),
        all_lost=Count("pk", filter=_came_to(Outcome.LOST)),
        all_gap_p50=Percentile("gap_ms", 0.5),
        all_gap_p95=Percentile("gap_ms", 0.95),
        all_first_at=Min("interrupted_at"),
        all_last_at=Max("interrupted_at"),
        all_waiting=Count("pk", filter=Q(review=Review.NEEDED.value)),
        all_assigned=Count("pk", filter=Q(review=Review.ASSIGNED.value)),
        all_reviewed=Count("pk", filter=Q(review=Review.REVIEWED.value)),
    )
    wasted = Attempt.objects.filter(session__in=sessions.order_by().values("pk")).aggregate(
        discarded=Sum("discarded_tokens", default=0), repeated=Sum("repeated_tokens", default=0)
    )
    told = {name.removeprefix("all_"): value for name, value in counted.items()}
    return IncidentFigures(**told, **wasted)


def groups_of(sessions: QuerySet[StreamSession], column: str) -> list[Group]:
    """By ``column``, the largest first. One query."""
    groups = (
        sessions.order_by()
        .values_list(column)
        .annotate(
            hit=Count("pk"),
            saw_it=Count("pk", filter=Q(noticed=True)),
            lost=Count("pk", filter=_came_to(Outcome.LOST)),
        )
        .order_by("-hit", column)
    )
    return [Group(*row) for row in groups[:MOST_GROUPS]]


def worth_looking_into(sessions: QuerySet[StreamSession]) -> QuerySet[StreamSession]:
    """Those that somebody's reader has been interrupted in, in the order in which they were hit."""
    return sessions.filter(outcome__in=[one.value for one in INTERRUPTED]).order_by(
        "interrupted_at", "pk"
    )


def history_of(incident: Incident, names: Sequence[str]) -> list[NodeEvent]:
    """What happened to these nodes around the time of an incident, oldest first."""
    until = incident.last_at or incident.closed_at or incident.opened_at
    return list(
        NodeEvent.objects.filter(
            node_name__in=names, at__range=(incident.opened_at - AROUND, until + AROUND)
        ).order_by("at", "id")[:MOST_EVENTS]
    )


def nodes_named(names: Sequence[str]) -> dict[str, InferenceNode]:
    """Those of them that there are still."""
    return {node.name: node for node in InferenceNode.objects.filter(name__in=names)}


def _came_to(outcome: Outcome) -> Q:
    return Q(outcome=outcome.value)
