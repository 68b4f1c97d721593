"""What runs on the nodes by our own account: the attempts of sessions whose gateways live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from streaming.fleet.gateway_lock import OWNER_IS_DEAD
from streaming.services.engines import Observation
from streaming.services.sql import rows

NOTES_DELAY = timedelta(seconds=0.4)
"""By then the journal has written that an attempt began or ended (it may delay that by 0.25 s)."""

CLOCKS_DIFFER = timedelta(seconds=0.05)
"""Between our clock and an engine's work: what began or ended so close to a look may or may not be
in its figures."""

# Each process is probed once, however many sessions it has; a probed lock ends with the statement.
_ALIVE = f"""
WITH alive AS MATERIALIZED (
    SELECT i.id, i.node_streams FROM streaming_gatewayinstance i
    WHERE i.stopped_at IS NULL AND i.heartbeat_at > now() - interval '5 seconds'
    AND NOT {OWNER_IS_DEAD}
), running AS (
    SELECT a.id, a.node_id, a.started_at, a.ended_at,
        coalesce(s.prompt_tokens, 0) + f.durable_seq AS tokens
    FROM alive
    JOIN streaming_streamsession s ON s.owner_id = alive.id
        AND s.ended_at IS NULL AND s.state <> 'suspended'
    JOIN session_fence f ON f.session_id = s.id
    JOIN streaming_attempt a ON a.session_id = s.id AND a.ended_at IS NULL
)
"""

_OPEN = f"{_ALIVE} SELECT id FROM running"

_COUNTS = f"""{_ALIVE}, seen AS (
    SELECT node_id, at - %(margin)s::interval AS began, until + %(margin)s::interval AS ended
    FROM unnest(%(nodes)s::int8[], %(ats)s::timestamptz[], %(untils)s::timestamptz[])
        AS t(node_id, at, until)
), ran AS (
    SELECT node_id, started_at, ended_at FROM running
    UNION ALL
    SELECT node_id, started_at, ended_at FROM streaming_attempt
    WHERE id = ANY(%(open)s) AND ended_at IS NOT NULL
), counted AS (
    SELECT node_id,
        count(*) FILTER (
            WHERE ran.started_at <= began AND (ran.ended_at IS NULL OR ran.ended_at > seen.ended)
        ) AS since_then,
        count(*) FILTER (WHERE ran.ended_at IS NULL OR ran.ended_at > began) AS at_most
    FROM ran JOIN seen USING (node_id) GROUP BY node_id
), said AS (
    SELECT streams.key::int8 AS node_id, sum(streams.value::int8)::int8 AS streams
    FROM alive, jsonb_each_text(alive.node_streams) AS streams GROUP BY 1
)
SELECT node_id, coalesce(since_then, 0), greatest(coalesce(at_most, 0), coalesce(streams, 0))
FROM counted FULL JOIN said USING (node_id)
"""

_SAID = f"""{_ALIVE}
SELECT streams.key::int8, sum(streams.value::int8)::int8
FROM alive, jsonb_each_text(alive.node_streams) AS streams GROUP BY 1
"""

_TOKENS = f"{_ALIVE} SELECT node_id, tokens FROM running WHERE node_id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class Live:
    """How many attempts ran on a node at a moment: surely, and perhaps."""

    at_least: int = 0
    at_most: int = 0


def open_attempts() -> list[int]:
    """The ids of what runs now, as far as it has been noted: to be asked before a look at nodes."""
    return [row[0] for row in rows(_OPEN)]


def live_attempts(looks: Mapping[int, Observation], open_before: Sequence[int]) -> dict[int, Live]:
    """By node id, what ran when each was looked at, ``NOTES_DELAY`` or more ago.

    Surely: what had begun before the look, and ended only after it or runs still; what has ended
    since is known from ``open_before``. Perhaps: what may have run then, what runs now, or what the
    processes said with their last heartbeats.
    """
    values = {
        "nodes": list(looks),
        "ats": [look.at for look in looks.values()],
        "untils": [look.until for look in looks.values()],
        "open": list(open_before),
        "margin": CLOCKS_DIFFER,
    }
    return {node: Live(least, max(least, most)) for node, least, most in rows(_COUNTS, values)}


def said_streams() -> dict[int, int]:
    """By node id, the streams that the living processes said they have, up to a second ago."""
    return dict(rows(_SAID))


def live_tokens(node_ids: Iterable[int]) -> dict[int, list[int]]:
    """By node id, the tokens of each attempt that runs: its prompt, as far as known, and answer."""
    ids = list(node_ids)
    tokens: dict[int, list[int]] = {node_id: [] for node_id in ids}
    for node_id, count in rows(_TOKENS, ids):
        tokens[node_id].append(count)
    return tokens
