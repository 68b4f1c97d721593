"""The sweep after ``runtime.reclaim``: what no gateway has seen to be gone from its engine.

That is what a gateway process left when it died or stopped, what was unverifiable then, and
requests that run on a node without belonging to anybody.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from streaming import metrics
from streaming.core.reclaim import OVERDUE_SECONDS, SURE_SECONDS, YOUNG_SECONDS, Look, Verdict
from streaming.models import Incident, InferenceNode, TaskRun
from streaming.runtime.incidents import CLOSE_RECLAIMED, IncidentKind
from streaming.services.engines import Observation, observe
from streaming.services.incidents import open_incident
from streaming.services.leases import release_lease, take_lease
from streaming.services.live_attempts import (
    NOTES_DELAY,
    Live,
    live_attempts,
    open_attempts,
    said_streams,
)
from streaming.services.node_events import note
from streaming.services.sql import changed, rows

logger = logging.getLogger(__name__)

TASK = "reclaim_kv_cache"
# Longer than a sweep may take; the one after a killed worker waits for so long.
LEASE_SECONDS = 10.0
# Younger ones are still the gateways'. Clocks of several machines may differ by as much, too.
LEAVE_ALONE = timedelta(seconds=1)
# What could not be verified in a day never will be.
LOOK_BACK = timedelta(days=1)
UNPROVEN = timedelta(seconds=30)
ABORTS_AT_ONCE = 1000

_OPEN = "reclaim IN ('pending', 'unverifiable', 'overdue')"

_WAITING = f"""
SELECT a.node_id, count(*), count(*) FILTER (WHERE a.ended_at > now() - %s)
FROM streaming_attempt a
WHERE {_OPEN} AND a.ended_at > now() - %s AND a.node_id IS NOT NULL
GROUP BY a.node_id
"""

_REQUESTS = f"""
SELECT engine_request_id FROM streaming_attempt
WHERE node_id = %s AND {_OPEN} AND ended_at BETWEEN now() - %s AND now() - %s
ORDER BY ended_at DESC LIMIT %s
"""

_VERIFY = f"""
UPDATE streaming_attempt SET reclaim = 'verified', reclaimed_at = now()
WHERE node_id = %s AND {_OPEN} AND ended_at BETWEEN %s AND %s
RETURNING extract(epoch FROM reclaimed_at - ended_at)::float8
"""

_MARK = """
UPDATE streaming_attempt SET reclaim = %s
WHERE node_id = %s AND reclaim = ANY(%s) AND ended_at BETWEEN %s AND %s
"""

# Nobody can ask a node any more that has been removed.
_WITHOUT_NODE = """
UPDATE streaming_attempt a SET reclaim = 'unverifiable'
WHERE reclaim IN ('pending', 'overdue') AND ended_at < now() - %s
AND NOT EXISTS (SELECT 1 FROM streaming_inferencenode n WHERE n.id = a.node_id)
"""


@dataclass(slots=True)
class Sweep:
    """What one sweep did, in attempts. ``surplus``: by node, the requests that nobody has there,
    and since when: an incident takes more than one look."""

    verified: int = 0
    slowest_seconds: float = 0.0
    unverifiable: int = 0
    overdue: int = 0
    waiting: int = 0
    surplus: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_result(self) -> dict[str, Any]:
        return {
            "verified": self.verified,
            "slowest_seconds": round(self.slowest_seconds, 3),
            "unverifiable": self.unverifiable,
            "overdue": self.overdue,
            "waiting": self.waiting,
            "surplus": self.surplus,
        }


def reclaim_kv_cache() -> dict[str, Any]:
    """Abort, verify, and raise or close incidents. Run twice at once, one of the two does nothing."""
    holder = f"{socket.gethostname()} {os.getpid()} {threading.get_ident()}"
    if not take_lease(TASK, holder, LEASE_SECONDS):
        return {"skipped": "another sweep runs"}
    try:
        return sweep().as_result()
    finally:
        release_lease(TASK, holder)


def sweep(only: InferenceNode | None = None) -> Sweep:
    """One sweep over all nodes, or one of them."""
    done = Sweep()
    former = _former_surplus()
    done.unverifiable += changed(_WITHOUT_NODE, LEAVE_ALONE)
    found = rows(_WAITING, timedelta(seconds=YOUNG_SECONDS), LOOK_BACK)
    waiting = {node_id: (count, young) for node_id, count, young in found}
    nodes = [node for node in _nodes(only) if node.pk in waiting or _is_worth_a_look(node)]
    if not nodes:
        return done
    open_incidents = Incident.objects.filter(kind=IncidentKind.KV_NOT_RECLAIMED, closed_at=None)
    open_incidents.filter(node=None).update(closed_at=timezone.now())  # their nodes were removed
    open_before = open_attempts()
    observed = observe(nodes, _aborts(node for node in nodes if node.pk in waiting))
    said = said_streams()
    if (
        waiting
        or open_incidents.exists()
        or any((observed[node.pk].held or 0) > said.get(node.pk, 0) for node in nodes)
    ):
        time.sleep(NOTES_DELAY.total_seconds())
        live = live_attempts(observed, open_before)
        for node in nodes:
            count, young = waiting.get(node.pk, (0, 0))
            done.waiting += count - young
            _settle(node, observed[node.pk], live.get(node.pk, Live()), young, former, done)
    return done


def _settle(
    node: InferenceNode,
    observation: Observation,
    live: Live,
    young: int,
    former: dict[str, dict[str, Any]],
    done: Sweep,
) -> None:
    """Note what one look at one node has shown."""
    look = Look(
        held=observation.held,
        live_at_least=live.at_least,
        live_at_most=live.at_most,
        young=young,
        exclusive=node.options.get("exclusive", "on") == "on",
        healthy=node.health == "up",
    )
    verdict = look.verdict
    at = observation.at
    if verdict is Verdict.GONE:
        seconds = [row[0] for row in rows(_VERIFY, node.pk, at - LOOK_BACK, at - LEAVE_ALONE)]
        for age_at_look in seconds:
            metrics.reclaimed(node.name, age_at_look, "verified")
        done.verified += len(seconds)
        done.slowest_seconds = max([done.slowest_seconds, *seconds])
    elif verdict is Verdict.LEFT:
        _note_surplus(node, look, at, former, done)
    else:
        is_busy = look.healthy and look.exclusive and look.held is not None
        age = UNPROVEN if is_busy else timedelta(seconds=OVERDUE_SECONDS)
        unverifiable = _mark(node, "unverifiable", ["pending"], at, age)
        metrics.reclaimed(node.name, None, "unverifiable", unverifiable)
        done.unverifiable += unverifiable
    is_clean = look.held is not None and look.healthy and not look.surplus
    if (verdict is Verdict.GONE or is_clean) and rows(CLOSE_RECLAIMED, [node.pk]):
        note(node, "kv_reclaimed", by=TASK)


def _note_surplus(
    node: InferenceNode, look: Look, at: datetime, former: dict[str, Any], done: Sweep
) -> None:
    """Requests that nobody has: an incident when they have been there for long enough."""
    since = parse_datetime(former.get(node.name, {}).get("since", "")) or at
    done.surplus[node.name] = {"requests": look.surplus, "since": since.isoformat()}
    seen_for = (at - since).total_seconds()
    if seen_for < SURE_SECONDS:
        return
    overdue = _mark(
        node, "overdue", ["pending", "unverifiable"], at, timedelta(seconds=OVERDUE_SECONDS)
    )
    metrics.reclaimed(node.name, None, "overdue", overdue)
    done.overdue += overdue
    if not overdue and seen_for < OVERDUE_SECONDS:
        return
    data = {"surplus": look.surplus, "held": look.held, "ours": look.live_at_most}
    if overdue:
        data["attempts"] = overdue
    if open_incident(IncidentKind.KV_NOT_RECLAIMED, node.name, node=node, data=data):
        logger.error("%s runs %s requests that nobody has", node.name, look.surplus)
        note(node, IncidentKind.KV_NOT_RECLAIMED, by=TASK, **data)


def _mark(
    node: InferenceNode, outcome: str, former: list[str], at: datetime, age: timedelta
) -> int:
    """Mark the node's attempts that ended ``age`` ago or earlier; how many."""
    return changed(_MARK, outcome, node.pk, former, at - LOOK_BACK, at - age)


def _nodes(only: InferenceNode | None) -> list[InferenceNode]:
    if only is not None:
        return [only]
    return list(InferenceNode.objects.order_by("pk"))


def _is_worth_a_look(node: InferenceNode) -> bool:
    """Whether requests that nobody has would show on it."""
    return (
        node.options.get("exclusive", "on") == "on"
        and node.health == "up"
        and bool(node.capabilities.get("figures"))
    )


def _aborts(nodes: Iterable[InferenceNode]) -> dict[int, list[str]]:
    """The requests to abort by id, by node, where the node can."""
    aborts = {}
    for node in nodes:
        if node.capabilities.get("abort"):
            found = rows(_REQUESTS, node.pk, LOOK_BACK, LEAVE_ALONE, ABORTS_AT_ONCE)
            aborts[node.pk] = [row[0] for row in found]
    return aborts


def _former_surplus() -> dict[str, dict[str, Any]]:
    """What the last sweep saw that had a look at the nodes."""
    result = TaskRun.objects.filter(name=TASK).values_list("result", flat=True).first() or {}
    return result.get("surplus", {})
