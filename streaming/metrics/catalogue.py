"""Every metric that processes count themselves: its name, its labels, and what it means.

Labels are of few values (node, model, cause, grade, state, …), never a session, tenant or user.
What is seen only when somebody scrapes (nodes, tasks, sockets) is in ``services.exposition``.
"""

from __future__ import annotations

from streaming.core.state import SessionState
from streaming.metrics.plain import Level, Spread, Total

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
LIFETIMES = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
POSITIONS = (0, 1, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)

LIVE_STATES = [state for state in SessionState if not state.is_end and state.value != "suspended"]
END_STATES = [state for state in SessionState if state not in LIVE_STATES]
PROTOCOLS = ("openai", "sessions", "websocket")
ENDS = ("whole", "moved", "early")

# Connections

SSE_CONNECTIONS = Level("sse_connections_active", "Event streams that are open.", mode="livesum")
SSE_CHUNKS = Total(
    "sse_chunks_delivered_total", "Events with text that were written to event streams."
)
WEBSOCKETS = Level("unbroken_websocket_connections", "WebSockets that are open.", mode="livesum")
CONNECTION_SECONDS = Spread(
    "unbroken_connection_seconds",
    "How long connections lasted that readers followed an answer on.",
    ["protocol"],
    bounds=LIFETIMES,
)
CONNECTIONS_ENDED = Total(
    "unbroken_connections_ended_total",
    "Connections by how they ended: whole, moved (told to come back on another) or early.",
    ["protocol", "end"],
    initial=[(protocol, end) for protocol in PROTOCOLS for end in ENDS],
)
ERRORS = Total("unbroken_errors_told_total", "Errors that HTTP clients were told.", ["code"])

# Sessions

SESSIONS = Level(
    "unbroken_sessions",
    "Live sessions by state.",
    ["state"],
    mode="livesum",
    initial=[(state.value,) for state in LIVE_STATES],
)
SESSION_ENDS = Total(
    "unbroken_session_ends_total",
    "Sessions that ended or were suspended, by the state they are in now; interrupted: by an error.",
    ["state"],
    initial=[*((state.value,) for state in END_STATES), ("interrupted",)],
)
ABANDONED_AT = Spread(
    "unbroken_abandonment_position_tokens",
    "How many tokens readers had when they left and did not come back in their grace period.",
    bounds=POSITIONS,
)
SETTLEMENT = Spread(
    "unbroken_disconnect_to_settlement_seconds",
    "From a reader's disconnect to the suspension or cancellation of its session being durable.",
    bounds=SECONDS,
)

# Limits

RATE_LIMITED = Total(
    "unbroken_rate_limited_total",
    "Requests that were refused, by the kind of limit: requests, tokens, streams or mints.",
    ["kind"],
    initial=[("requests",), ("tokens",), ("streams",), ("mints",)],
)
QUEUE_LENGTH = Level(
    "unbroken_queue_length", "Requests that wait for one of their streams to end.", mode="livesum"
)
QUEUE_WAIT = Spread(
    "unbroken_queue_seconds",
    "How long requests waited so, whatever came of it; those that did not wait are not counted.",
    bounds=SECONDS,
)
LIMITS_ALONE = Level(
    "unbroken_limits_alone",
    "Gateway processes that keep limits by themselves because Redis is away.",
    mode="livesum",
)

# Tokens

FIRST_TOKEN = Spread(
    "unbroken_first_token_seconds",
    "From the start of a session to its first token.",
    ["model"],
    bounds=SECONDS,
)
INTER_TOKEN = Spread(
    "unbroken_inter_token_seconds",
    "Time between two reads with data from an engine.",
    ["node", "model"],
    bounds=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0),
)
GENERATED = Total("unbroken_tokens_generated_total", "Tokens that engines generated for us.")
DELIVERED = Total(
    "unbroken_tokens_delivered_total", "Tokens that there is evidence of having reached a reader."
)
WASTED = Total(
    "unbroken_tokens_wasted_total",
    "Tokens that were generated and never delivered, by why.",
    ["cause"],
    initial=[(cause,) for cause in ("discarded", "repeated", "hedge", "undelivered")],
)

# Quality of delivery

QUALITY_FIRST_TOKEN = Spread(
    "unbroken_quality_first_token_seconds",
    "From the start of a session to its first token, by level and variant.",
    ["level", "variant"],
    bounds=SECONDS,
)
QUALITY_GAP = Spread(
    "unbroken_quality_gap_seconds",
    "Between a reader's last token before an interruption and the next, by level and variant.",
    ["level", "variant"],
    bounds=SECONDS,
)
READER_LAG = Spread(
    "unbroken_reader_lag_seconds",
    "How long the oldest of what was sent to a reader had not been taken, each second.",
    ["level"],
    bounds=SECONDS,
)
CONNECTION_HEALTH = Spread(
    "unbroken_connection_health",
    "The lowest score of each connection to a reader, 0 to 100.",
    ["level"],
    bounds=(10, 20, 30, 40, 50, 60, 70, 80, 90, 100),
)

# Failover

ATTEMPTS = Total("unbroken_attempts_total", "Attempts that ended, by why.", ["node", "reason"])
FAILOVERS = Total(
    "unbroken_failovers_total",
    "Interrupted attempts, by why, and how exactly the rest was joined on.",
    ["cause", "grade", "node"],
)
SEAM_GAP = Spread(
    "unbroken_seam_gap_seconds",
    "Between the last data of an attempt and the first token of the one that goes on.",
    ["kind", "grade"],
    bounds=SECONDS,
)
DETECTION = Spread(
    "unbroken_detection_seconds",
    "Between an engine's last data and its failure being noticed.",
    ["cause"],
    bounds=SECONDS,
)
RECOVERY = Spread(
    "unbroken_recovery_seconds",
    "Between a failure being noticed and the next token.",
    ["kind"],
    bounds=SECONDS,
)
HEDGES = Total(
    "unbroken_hedges_total",
    "Hedges: won (spoke first), lost (the silent attempt did) or failed by themselves.",
    ["outcome"],
    initial=[("won",), ("lost",), ("failed",)],
)
RECOVERY_QUEUE = Level(
    "unbroken_recovery_queue_length",
    "Streams that wait for their turn to be continued.",
    mode="livesum",
)

# Reclaim

RECLAIM = Spread(
    "unbroken_reclaim_seconds",
    "From the end of an attempt to its request being seen gone from its engine.",
    ["node"],
    bounds=SECONDS,
)
RECLAIMS = Total(
    "unbroken_reclaims_total",
    "Attempts by what became of the engine's side: verified, unverifiable or overdue.",
    ["node", "outcome"],
)

# The journal and the process

JOURNAL_FLUSH = Spread(
    "unbroken_journal_flush_seconds", "Time one flush of the journal took.", bounds=SECONDS
)
JOURNAL_SESSIONS = Spread(
    "unbroken_journal_flush_sessions", "Sessions that shared one flush.", bounds=SIZES
)
JOURNAL_LAG = Level(
    "unbroken_journal_lag_seconds",
    "For how long the oldest pending row has waited to become durable.",
    mode="livemax",
)
JOURNAL_PENDING = Level(
    "unbroken_journal_pending_sessions",
    "Sessions with something that is not durable yet.",
    mode="livesum",
)
PROCESSES = Level(
    "unbroken_gateway_processes", "Gateway processes that are running.", mode="livesum"
)
WITHOUT_DATABASE = Level(
    "unbroken_gateways_without_database",
    "Gateway processes whose journal cannot write: they take nothing new and show nothing new.",
    mode="livesum",
)
LOOP_DELAY = Spread(
    "unbroken_event_loop_delay_seconds",
    "How late a process came to what was due, looked at once a second.",
    bounds=SECONDS,
)

# Content

CONTENT_RULE_HITS = Total(
    "unbroken_content_rule_hits_total",
    "What content rules and moderators have found in answers, by what became of it.",
    ["action"],
    initial=[("stop",), ("mask",), ("flag",)],
)
MODERATOR_FAILURES = Total(
    "unbroken_moderator_failures_total", "Windows of text for which a moderator gave no verdict."
)
