"""What runs on the nodes by our own account: the attempts of sessions whose gateways live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from streaming.runtime.instance import OWNER_IS_DEAD
from streaming.services.sql import rows

NOTES_DELAY = timedelta(seconds=0.4)
"""By then the journal has written that an attempt began or ended (it may delay that by 0.25 s)."""

# Each process is probed once, however many sessions it has; a probed lock ends with the statement.
_ALIVE = f"""
WITH alive AS MATERIALIZED (
    SELECT i.id, i.node_streams FROM streaming_gatewayinstance i
    WHERE i.stopped_at IS NULL AND i.heartbeat_at > now() - interval '5 seconds'
    AND NOT {OWNER_IS_DEAD}
), running AS (
    SELECT a.node_id, a.started_at, coalesce(s.prompt_tokens, 0) + f.durable_seq AS tokens
    FROM alive
    JOIN streaming_streamsession s ON s.owner_id = alive.id
        AND s.ended_at IS NULL AND s.state <> 'suspended'
    JOIN session_fence f ON f.session_id = s.id
    JOIN streaming_attempt a ON a.session_id = s.id AND a.ended_at IS NULL
)
"""

_COUNTS = f"""{_ALIVE}, counted AS (
    SELECT node_id, count(*) FILTER (WHERE started_at <= %s) AS since_then, count(*) AS now
    FROM running GROUP BY node_id
), said AS (
    SELECT streams.key::int8 AS node_id, sum(streams.value::int8)::int8 AS streams
    FROM alive, jsonb_each_text(alive.node_streams) AS streams GROUP BY 1
)
SELECT node_id, coalesce(since_then, 0), greatest(coalesce(now, 0), coalesce(streams, 0))
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


def live_attempts(at: datetime) -> dict[int, Live]:
    """By node id, what ran at ``at``, ``NOTES_DELAY`` or more ago.

    Surely: what had begun by then and has not ended yet. Perhaps: what runs now, or what the
    processes said with their last heartbeats.
    """
    return {node: Live(least, max(least, most)) for node, least, most in rows(_COUNTS, at)}


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
