"""What goes on now: streams, tokens, nodes, gateways, interruptions and incidents.

From the database alone, so that any process can tell it of all. ``Board`` shares what it has read
among all who watch, and knows rates: they take two readings.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef
from django.db.models.functions import Now

from streaming.core.fragmentation import fragmentation_index
from streaming.core.outcome import INTERRUPTED
from streaming.core.wording import cause_in_words
from streaming.models import GatewayInstance, Incident, InferenceNode, StreamSession
from streaming.services.live_attempts import live_tokens
from streaming.services.sql import rows

Tenants = frozenset[int] | None
"""Whose figures: those of these tenants, or all."""

DEAD_AFTER = 5.0
MISSED_FOR = timedelta(minutes=10)
"""For so long a gateway that is heard of no more is missed; one that stopped is not."""
NEWEST = 12
GATEWAYS = 200
INCIDENTS = 20
COUNTED = 20_000
"""Interruptions of an hour that are counted; there are more only when nearly everything fails."""
FOLLOWED = 20_000

_OUTCOMES = ", ".join(f"'{outcome.value}'" for outcome in INTERRUPTED)

# Those that have not ended are in an index of their own, which is read whole.
_STREAMS = """
SELECT state, count(*) FROM streaming_streamsession
WHERE ended_at IS NULL {of_tenants} GROUP BY state
"""
_PROGRESS = f"""
SELECT s.id, f.durable_seq FROM streaming_streamsession s JOIN session_fence f ON f.session_id = s.id
WHERE s.ended_at IS NULL AND s.state <> 'suspended' {{of_tenants}} LIMIT {FOLLOWED}
"""
_INTERRUPTIONS = f"""
SELECT outcome, interrupted_at > now() - interval '1 minute' AS lately, count(*), sum(failovers)
FROM (
    SELECT outcome, interrupted_at, failovers FROM streaming_streamsession
    WHERE outcome IN ({_OUTCOMES}) AND interrupted_at > now() - interval '1 hour' {{of_tenants}}
    ORDER BY interrupted_at DESC LIMIT {COUNTED}
) newest GROUP BY 1, 2
"""
_NEWEST = f"""
SELECT s.id, s.reference, coalesce(nullif(t.display_name, ''), t.name), s.model, s.outcome, s.interrupted_cause, s.interrupted_node,
    s.interrupted_at, s.noticed
FROM streaming_streamsession s JOIN streaming_tenant t ON t.id = s.tenant_id
WHERE s.outcome IN ({_OUTCOMES}) AND s.interrupted_at > now() - interval '1 day' {{of_tenants}}
ORDER BY s.interrupted_at DESC LIMIT {NEWEST}
"""


def snapshot(tenants: Tenants) -> dict[str, Any]:
    """The board as JSON has it, without rates; at most seven queries.

    ``streams``: by state (starting, streaming, recovering, suspended). ``interrupted`` and
    ``failovers``: of the last ``minute`` and ``hour``. ``newest``: the latest interruptions of a day.
    Shares are 0 to 1, ages and gaps seconds, times ISO 8601 in UTC. Who sees single tenants only
    gets None for ``readers``, ``gateways`` and ``nodes``, and no names of nodes.
    """
    return _read(tenants).shown


@dataclass(slots=True)
class _Reading:
    """``counts``: by whatever counts tokens (a gateway, a session) how many, and when (seconds)."""

    shown: dict[str, Any]
    counts: dict[Any, tuple[int, float]] = field(default_factory=dict)


def _read(tenants: Tenants) -> _Reading:
    reading = _Reading(
        {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "limited": tenants is not None,
            "streams": _streams(tenants),
            "readers": None,
            "tokens_per_second": None,
            **_interruptions(tenants),
            "gateways": None,
            "nodes": None,
            "newest": _newest(tenants),
            **_incidents(tenants),
        }
    )
    if tenants is None:
        _add_fleet(reading)
    else:
        now = time.monotonic()
        reading.counts = {
            session_id: (seq, now) for session_id, seq in _rows(_PROGRESS, tenants, "s.tenant_id")
        }
    return reading


def _rows(statement: str, tenants: Tenants, column: str = "tenant_id") -> list[tuple[Any, ...]]:
    if tenants is None:
        return rows(statement.format(of_tenants=""))
    return rows(statement.format(of_tenants=f"AND {column} = ANY(%s)"), sorted(tenants))


def _streams(tenants: Tenants) -> dict[str, int]:
    counted = dict(_rows(_STREAMS, tenants))
    counted["starting"] = counted.pop("created", 0)
    return {
        state: counted.get(state, 0)
        for state in ("starting", "streaming", "recovering", "suspended")
    }


def _interruptions(tenants: Tenants) -> dict[str, Any]:
    sessions = {"minute": Counter[str](), "hour": Counter[str]()}
    failovers = {"minute": 0, "hour": 0}
    for outcome, lately, number, failed_over in _rows(_INTERRUPTIONS, tenants):
        for span in ("minute", "hour") if lately else ("hour",):
            sessions[span][outcome] += number
            failovers[span] += failed_over
    interrupted = {
        span: {outcome.value: sessions[span][outcome.value] for outcome in INTERRUPTED}
        for span in sessions
    }
    return {"failovers": failovers, "interrupted": interrupted}


def _newest(tenants: Tenants) -> list[dict[str, Any]]:
    return [
        {
            "id": str(session_id),
            "reference": reference,
            "tenant": tenant,
            "model": model,
            "outcome": outcome,
            "cause": cause_in_words(cause) if cause else "",
            "node": node if tenants is None else None,
            "at": at.isoformat(timespec="milliseconds"),
            "noticed": noticed,
        }
        for session_id, reference, tenant, model, outcome, cause, node, at, noticed in _rows(
            _NEWEST, tenants, "s.tenant_id"
        )
    ]


def _incidents(tenants: Tenants) -> dict[str, Any]:
    """Those that are open; of single tenants those that hit one of their sessions."""
    found = Incident.objects.filter(closed_at__isnull=True).order_by("-opened_at")
    if tenants is not None:
        hit = StreamSession.objects.filter(incident=OuterRef("pk"), tenant_id__in=tenants)
        found = found.filter(Exists(hit))
    listed = list(found[: INCIDENTS + 1])
    shown = [
        {
            "id": incident.pk,
            "kind": incident.kind,
            "subject": incident.subject if tenants is None else None,
            "cause": cause_in_words(incident.cause) if incident.cause else "",
            "opened": incident.opened_at.isoformat(timespec="seconds"),
        }
        for incident in listed[:INCIDENTS]
    ]
    return {"incidents": shown, "more_incidents": len(listed) > INCIDENTS}


def _add_fleet(reading: _Reading) -> None:
    """The gateways, what they say of themselves, and the nodes."""
    gateways, readers = [], 0
    streams: Counter[int] = Counter()
    heard_of = GatewayInstance.objects.filter(
        stopped_at=None, heartbeat_at__gt=Now() - MISSED_FOR
    ).order_by("-pk")
    for gateway in heard_of.annotate(age=_since("heartbeat_at"))[:GATEWAYS]:
        age = gateway.age.total_seconds()
        figures = gateway.figures if age < DEAD_AFTER else {}
        if age < DEAD_AFTER:
            readers += figures.get("readers", 0)
            streams.update({int(node): number for node, number in gateway.node_streams.items()})
            reading.counts[gateway.pk] = (
                figures.get("tokens", 0),
                gateway.heartbeat_at.timestamp(),
            )
        gateways.append(
            {
                "id": gateway.pk,
                "name": f"{gateway.hostname} {gateway.pid}",
                "state": "alive" if age < DEAD_AFTER else "missed",
                "age": round(max(0.0, age), 1),
                "streams": figures.get("streams"),
                "readers": figures.get("readers"),
                "tokens_per_second": None,
            }
        )
    reading.shown.update(gateways=gateways, readers=readers, nodes=_nodes(streams))


def _nodes(streams: Counter[int]) -> list[dict[str, Any]]:
    nodes = list(InferenceNode.objects.annotate(age=_since("checked_at")).order_by("name"))
    live = live_tokens(node.pk for node in nodes) if any(streams.values()) else {}
    return [
        {
            "id": node.pk,
            "name": node.name,
            "state": node.state,
            "reason": "" if node.health == "up" or node.state == "drained" else node.health_reason,
            "circuit": node.circuit,
            "streams": streams[node.pk],
            "running": node.figures.get("running"),
            "waiting": node.figures.get("waiting"),
            "kv_usage": node.figures.get("kv_usage"),
            "fragmentation": fragmentation_index(
                node.figures.get("kv_usage"),
                node.figures.get("kv_tokens"),
                node.figures.get("block_tokens"),
                live.get(node.pk, ()),
            ),
            "age": None if node.age is None else round(max(0.0, node.age.total_seconds()), 1),
        }
        for node in nodes
    ]


def _since(column: str) -> ExpressionWrapper:
    """How long ago, by the clock of the database, which wrote it."""
    return ExpressionWrapper(Now() - F(column), output_field=DurationField())


# Sharing


class Board:
    """What was read last, for each set of tenants that somebody watches; read once a second at most.

    Used by any number of threads; who asks for what another is reading waits for it.
    """

    SECONDS = 1.0
    FORGET_SECONDS = 60.0
    SCOPES = 64
    """Sets of tenants that are remembered; who watches another one has no rates at first."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[Tenants, _Scope] = OrderedDict()
        self._lock = threading.Lock()

    def current(self, tenants: Tenants) -> dict[str, Any]:
        """As ``snapshot``, with rates in tokens per second; up to a second old. Not to be changed."""
        with self._lock:
            scope = self._scopes.setdefault(tenants, _Scope())
            self._scopes.move_to_end(tenants)
            while len(self._scopes) > self.SCOPES:
                self._scopes.popitem(last=False)
        with scope.lock:
            now = time.monotonic()
            if scope.reading is None or now - scope.read_at >= self.SECONDS:
                if now - scope.read_at > self.FORGET_SECONDS:
                    scope.rates.clear()
                scope.take(_read(tenants), now)
            assert scope.reading is not None
            return scope.reading.shown


class _Scope:
    """``rates``: by counter, its last count and when, and the rate between the last two."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reading: _Reading | None = None
        self.read_at = 0.0
        self.rates: dict[Any, tuple[int, float, float | None]] = {}

    def take(self, reading: _Reading, now: float) -> None:
        rates: dict[Any, tuple[int, float, float | None]] = {}
        for counter, (count, at) in reading.counts.items():
            last, last_at, rate = self.rates.get(counter, (count, at, None))
            if at > last_at:  # a heartbeat that was seen before says nothing new
                rate = max(0, count - last) / (at - last_at)
            rates[counter] = (count, at, rate)
        known = [rate for _, _, rate in rates.values() if rate is not None]
        # Nothing to count, where something was counted before, is no unknown rate but none.
        if known or (self.reading is not None and not rates):
            reading.shown["tokens_per_second"] = round(sum(known), 1)
        for gateway in reading.shown["gateways"] or ():
            _, _, rate = rates.get(gateway["id"], (0, 0.0, None))
            gateway["tokens_per_second"] = None if rate is None else round(rate, 1)
        self.rates, self.reading, self.read_at = rates, reading, now


board = Board()
"""Of this process."""
