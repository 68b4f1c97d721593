"""The gateway processes, as their heartbeats and what they leave lying tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from django.conf import settings

from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from gateway_project.doctor.postgres import CONNECT_SECONDS, is_reachable, unreachable
from streaming.services.sql import rows

DEAD_SECONDS = 5.0
LATE_SECONDS = 30.0
"""What others should have taken over, or settled, by then."""

_LIVE = """
SELECT count(*) FROM streaming_gatewayinstance
WHERE stopped_at IS NULL AND heartbeat_at > now() - make_interval(secs => %s)
"""
_INSTANCES = """
SELECT id, hostname, extract(epoch FROM now() - heartbeat_at)::float8,
    extract(epoch FROM now() - nodes_read_at)::float8
FROM streaming_gatewayinstance
WHERE stopped_at IS NULL AND heartbeat_at > now() - interval '1 day' ORDER BY id
"""
_DESERTED = """
SELECT count(*) FROM streaming_streamsession s JOIN streaming_gatewayinstance i ON i.id = s.owner_id
WHERE s.ended_at IS NULL AND s.state <> 'suspended'
AND coalesce(i.stopped_at, i.heartbeat_at) < now() - make_interval(secs => %s)
"""
_UNSETTLED = """
SELECT coalesce(max(extract(epoch FROM now() - created_at)), 0)::float8, count(*)
FROM streaming_outboxmessage WHERE handled_at IS NULL AND NOT data ? 'retry_at'
"""
_INCIDENTS = """
SELECT kind, subject, extract(epoch FROM now() - opened_at)::float8 FROM streaming_incident
WHERE closed_at IS NULL ORDER BY opened_at DESC LIMIT 10
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """``beat``, ``nodes_read``: seconds since its heartbeat, and since it read the node table."""

    id: int
    host: str
    beat: float
    nodes_read: float | None


def live_count() -> int:
    """How many processes live; 0 where nobody can say."""
    try:
        with psycopg.connect(settings.DATABASE_URL, connect_timeout=CONNECT_SECONDS) as connection:
            row = connection.execute(_LIVE, (DEAD_SECONDS,)).fetchone()
    except psycopg.Error:
        return 0
    return row[0] if row else 0


def look() -> Iterator[Finding]:
    if not is_reachable():
        yield unreachable("heartbeats")
        return
    yield from judge_instances([Instance(*row) for row in rows(_INSTANCES)])
    ((deserted,),) = rows(_DESERTED, LATE_SECONDS)
    yield judge_deserted(deserted)
    yield judge_settlement(*rows(_UNSETTLED)[0])
    yield from judge_incidents(rows(_INCIDENTS))


def judge_instances(instances: Sequence[Instance]) -> Iterator[Finding]:
    live = [one for one in instances if one.beat <= DEAD_SECONDS]
    if not live:
        yield failure(
            "heartbeats",
            "no gateway process lives",
            "Start one: `manage.py serve`, or your unit's service.",
        )
    else:
        hosts = len({one.host for one in live})
        yield ok(
            "heartbeats",
            f"{counted(len(live), 'gateway process', 'es')} on {counted(hosts, 'host')}",
        )
    if len(live) == 1:
        yield note(
            "spare",
            "there is one gateway process",
            "With a second one its end is noticed by nobody.",
        )
    for one in live:
        if one.nodes_read is None or one.nodes_read > LATE_SECONDS:
            yield warning(
                "node table",
                f"gateway {one.id} on {one.host} has not read it lately: it follows no drain",
                "See its log; a process that is overloaded reads late.",
            )
    dead = [one for one in instances if one.beat > DEAD_SECONDS]
    if dead:
        names = ", ".join(f"{one.id} on {one.host}" for one in dead[:5])
        yield note(
            "crashes", f"{len(dead)} ended without a word within a day: {names}", "See their logs."
        )


def counted(number: int, thing: str, plural: str = "s") -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {thing}{'' if number == 1 else plural}"


def judge_deserted(count: int) -> Finding:
    if count:
        return failure(
            "deserted sessions",
            f"{count} belong to dead processes for longer than {LATE_SECONDS:g} s, and nobody has taken them over",
            "A gateway process or the worker must run; see their logs.",
        )
    return ok("deserted sessions", "none")


def judge_settlement(oldest: float, count: int) -> Finding:
    """``oldest``: seconds for which the first of ``count`` sessions waits for its bill."""
    if oldest > LATE_SECONDS:
        return warning(
            "settlement",
            f"{count} sessions wait for it, the first for {oldest:.0f} s",
            "See that Celery's worker and beat run.",
            "docs/billing.md",
        )
    return ok("settlement", f"{count} sessions wait for it" if count else "nothing waits for it")


def judge_incidents(incidents: Sequence[tuple[str, str, float]]) -> Iterator[Finding]:
    """``incidents``: kind, subject and age in seconds of those that are open."""
    for kind, subject, age in incidents:
        yield warning(
            "incidents",
            f"open for {age / 60:.0f} min: {kind.replace('_', ' ')} ({subject})",
            "Its page in the admin says what happened.",
            "docs/support.md",
        )
    if not incidents:
        yield ok("incidents", "none is open")
