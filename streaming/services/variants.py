"""What the sides of a comparison have come to: how their readers were served, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from streaming.services.sql import rows

_COMPARED = """
WITH chosen AS (
    SELECT id, variant, extract(epoch FROM first_token_at - created_at) * 1000 AS first_token_ms,
        gap_ms, noticed, health
    FROM streaming_streamsession
    WHERE created_at >= %s AND (%s::text IS NULL
        OR tenant_id = (SELECT id FROM streaming_tenant WHERE name = %s))
), returns AS (
    SELECT e.session_id, count(*) AS number
    FROM streaming_sessionevent e JOIN chosen ON chosen.id = e.session_id
    WHERE e.kind = 'reader_joined' AND (e.data ->> 'cursor')::int8 > 0 GROUP BY 1
)
SELECT variant, count(*),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY first_token_ms)::float8,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY first_token_ms)::float8,
    count(gap_ms),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY gap_ms)::float8,
    count(*) FILTER (WHERE noticed),
    coalesce(sum(returns.number), 0)::int8,
    avg(health)::float8,
    count(*) FILTER (WHERE health < %s)
FROM chosen LEFT JOIN returns ON returns.session_id = chosen.id
GROUP BY variant ORDER BY variant
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One variant; empty: the sessions that have none. Times are milliseconds; None: there is none.

    ``gaps``: sessions whose reader waited because of an interruption; ``noticed``: long enough to
    see it. ``returns``: how often readers came back with a cursor. ``health``: the mean of the
    lowest scores of their connections; ``weak``: sessions below ``weak_below`` of it.
    """

    variant: str
    sessions: int
    first_token_p50: float | None
    first_token_p95: float | None
    gaps: int
    gap_p95: float | None
    noticed: int
    returns: int
    health: float | None
    weak: int


def compare_variants(
    since: datetime, *, tenant: str | None = None, weak_below: int = 40
) -> list[Side]:
    """Each variant that a session has had which began at ``since`` or later. ``tenant``: its name."""
    return [Side(*row) for row in rows(_COMPARED, since, tenant, tenant, weak_below)]
