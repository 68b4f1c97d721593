"""Sessions that one cause has hit in one moment are one incident: grouped by where it happened.

A moment slides: whoever is hit within half a minute of the last one belongs to it. Readers' causes
make none. What an engine or a gateway has done is an incident even if it hit one session only; a
connection that breaks, or a limit that is reached, is one if it hit several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from streaming.core.attribution import Blame
from streaming.models import GatewayInstance, Incident, InferenceNode, StreamSession
from streaming.services.sql import rows

KIND = "interruption"
MOMENT = timedelta(seconds=30)
QUIET = timedelta(seconds=60)
"""An incident that nobody was hit by for so long is over."""

ADVISORY_CLASS = 0x554E45  # others have other classes
GROUPING = 0
OF_READERS = frozenset({Blame.CLIENT_GONE.value, Blame.CLIENT_STOP.value})
NETWORK = "the network"
"""The subject of a partition: it lies at no node."""

OURS = frozenset({"nodes", "gateway"})
"""What this module writes into an incident's data; one with more has a history of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One session and what hit it. ``gateway``: the id of the process that died, if one did."""

    session_id: UUID
    at: datetime
    cause: str
    node: str = ""
    gateway: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """What all sessions of an incident share: the cause, and where it was."""
        if self.cause == Blame.NETWORK_PARTITION:
            return self.cause, NETWORK
        if self.cause.startswith("gateway_"):
            return self.cause, f"gateway {self.gateway}".strip()
        return self.cause, self.node or "no node"

    @property
    def stands_alone(self) -> bool:
        """Whether one session hit is enough."""
        return self.cause.startswith(("engine_", "gateway_"))


@dataclass(slots=True)
class _Burst:
    """Hits at one place within a moment of each other."""

    hits: list[Hit] = field(default_factory=list)

    @property
    def first(self) -> datetime:
        return min(hit.at for hit in self.hits)

    @property
    def last(self) -> datetime:
        return max(hit.at for hit in self.hits)


def group(hits: Sequence[Hit]) -> dict[UUID, int | None]:
    """The incident of each session; None: it belongs to none. Sessions that were hit alone before
    and turn out not to have been are in the result too.

    To be called in a transaction, whose end lets others group: they would miss what is not there yet.
    """
    result: dict[UUID, int | None] = {hit.session_id: None for hit in hits}
    hits = [hit for hit in hits if hit.cause not in OF_READERS]
    if not hits:
        return result
    rows("SELECT pg_advisory_xact_lock(%s, %s)", ADVISORY_CLASS, GROUPING)
    for (cause, subject), burst in _bursts(hits):
        incident = _of_that_moment(cause, subject, burst)
        if incident is None:
            if not burst.hits[0].stands_alone:
                burst.hits += _alone_before(burst)
                if len(burst.hits) < 2:
                    continue
            incident = _opened(cause, subject, burst)
        else:
            _extend(incident, burst)
        for hit in burst.hits:
            result[hit.session_id] = incident.pk
    return result


def _bursts(hits: Iterable[Hit]) -> list[tuple[tuple[str, str], _Burst]]:
    by_place: dict[tuple[str, str], list[Hit]] = defaultdict(list)
    for hit in hits:
        by_place[hit.place].append(hit)
    found = []
    for place, those in by_place.items():
        those.sort(key=lambda hit: hit.at)
        burst = _Burst()
        for hit in those:
            if burst.hits and hit.at - burst.hits[-1].at > MOMENT:
                found.append((place, burst))
                burst = _Burst()
            burst.hits.append(hit)
        found.append((place, burst))
    return found


def _of_that_moment(cause: str, subject: str, burst: _Burst) -> Incident | None:
    """The incident that these belong to, also one that is closed: causes come late."""
    near = Incident.objects.filter(
        kind=KIND,
        cause=cause,
        subject=subject[:200],
        opened_at__lte=burst.last + MOMENT,
        last_at__gte=burst.first - MOMENT,
    )
    return near.order_by("-opened_at").first()


def _alone_before(burst: _Burst) -> list[Hit]:
    """Sessions hit by the same and in no incident, because each seemed to be the only one."""
    one = burst.hits[0]
    known = [hit.session_id for hit in burst.hits]
    others = (
        StreamSession.objects.exclude(outcome="")
        .exclude(pk__in=known)
        .filter(
            interrupted_cause=one.cause,
            interrupted_node=one.node,
            interrupted_at__gte=burst.first - MOMENT,
            interrupted_at__lte=burst.last + MOMENT,
            incident__isnull=True,
        )
        .values_list("pk", "interrupted_at")[:1000]
    )
    return [
        Hit(session_id=pk, at=at, cause=one.cause, node=one.node)
        for pk, at in others
        if at is not None
    ]


def _opened(cause: str, subject: str, burst: _Burst) -> Incident:
    """A new one. At most one may be open for a subject: the one before it is over."""
    subject = subject[:200]
    Incident.objects.filter(kind=KIND, subject=subject, closed_at__isnull=True).update(
        closed_at=timezone.now()
    )
    one = burst.hits[0]
    at_node = subject == one.node
    data: dict[str, Any] = {"nodes": _nodes(burst)}
    if one.gateway:
        data["gateway"] = _gateway_named(one.gateway)
    return Incident.objects.create(
        kind=KIND,
        cause=cause,
        subject=subject,
        node=InferenceNode.objects.filter(name=one.node).first() if at_node else None,
        opened_at=burst.first,
        last_at=burst.last,
        data=data,
    )


def _extend(incident: Incident, burst: _Burst) -> None:
    known = incident.data.get("nodes")
    known = known if isinstance(known, list) else []
    nodes = sorted({*map(str, known), *_nodes(burst)})
    incident.data = {**incident.data, "nodes": nodes}
    incident.opened_at = min(incident.opened_at, burst.first)
    incident.last_at = max(incident.last_at or burst.last, burst.last)
    incident.save(update_fields=["data", "opened_at", "last_at"])


def _nodes(burst: _Burst) -> list[str]:
    return sorted({hit.node for hit in burst.hits if hit.node})


def _gateway_named(gateway: str) -> str:
    instance = GatewayInstance.objects.filter(pk=gateway).first() if gateway.isdigit() else None
    return str(instance) if instance else f"gateway {gateway}"


def close_quiet() -> int:
    """Close the incidents that are over, and delete those that nobody belongs to; how many closed."""
    limit = timezone.now() - QUIET
    open_ones = Incident.objects.filter(kind=KIND, closed_at__isnull=True)
    over = list(open_ones.filter(Q(last_at__lt=limit) | Q(last_at__isnull=True)))
    if not over:
        return 0
    delete_emptied([incident.pk for incident in over])
    still = [incident.pk for incident in over]
    return open_ones.filter(pk__in=still, last_at__lt=limit).update(closed_at=timezone.now())


@transaction.atomic
def delete_emptied(incident_ids: Iterable[int]) -> int:
    """Delete those of which all sessions have turned out to belong elsewhere; how many."""
    ids = [pk for pk in incident_ids if pk is not None]
    if not ids:
        return 0
    rows("SELECT pg_advisory_xact_lock(%s, %s)", ADVISORY_CLASS, GROUPING)
    has_any = Exists(StreamSession.objects.filter(incident=OuterRef("pk")))
    empty = [
        incident.pk
        for incident in Incident.objects.filter(~has_any, kind=KIND, pk__in=ids)
        if not incident.data.keys() - OURS
    ]
    return Incident.objects.filter(pk__in=empty).delete()[0]
