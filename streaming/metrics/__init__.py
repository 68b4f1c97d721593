"""What this process counts for ``/metrics``. ``docs/metrics.md`` explains every one of them.

Nothing that happens once a token touches a prometheus_client object (a lock and a memory map): all
counting is on plain numbers (``plain``), which are carried over by ``fold`` once a second and when
somebody scrapes. Functions for what happens elsewhere in the gateway are in ``events``.
"""

from streaming.metrics.events import (
    attempt_ended,
    connection_ended,
    connection_health,
    content_rule_hit,
    failover,
    first_token,
    hedge,
    moderator_failed,
    pace,
    reader_gap,
    reader_lag,
    reclaimed,
    seam,
    session_ended,
    session_left,
    settled_after_disconnect,
    wasted,
)
from streaming.metrics.plain import fold

__all__ = [
    "attempt_ended",
    "connection_ended",
    "connection_health",
    "content_rule_hit",
    "failover",
    "first_token",
    "fold",
    "hedge",
    "moderator_failed",
    "pace",
    "reader_gap",
    "reader_lag",
    "reclaimed",
    "seam",
    "session_ended",
    "session_left",
    "settled_after_disconnect",
    "wasted",
]
