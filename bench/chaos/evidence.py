"""What the gateway's database and the engines say of a run, beside what its readers saw.

``evidence.json`` holds the sums; ``sessions.jsonl`` one line a session (:class:`SessionEvidence`),
since figures compare each reader with its own session. Everything is read in pages along the
primary key, so that a run of 100,000s of sessions needs no more memory than one of a few.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.chaos import gauges
from bench.chaos.records import StreamRecord

FILE = "evidence.json"
SESSIONS = "sessions.jsonl"
PAGE = 20_000
SAMPLE = 50
"""Sessions that are looked up to learn whose they are."""

Sql = Callable[..., list[tuple[Any, ...]]]
"""Runs one statement with arguments for its ``%s``; ``tests.stack.Stack.sql``."""


@dataclass(slots=True, kw_only=True)
class AttemptEvidence:
    """One attempt, see ``streaming.models.Attempt``; moments in seconds since the epoch."""

    number: int
    kind: str
    node: str
    started: float
    first_token: float | None = None
    ended: float | None = None
    first_seq: int = 0
    """Of its first token in the log; 0: it has none there."""
    end_reason: str = ""
    cause: str = ""
    grade: str = ""
    detection_ms: float | None = None
    """From its last data to the moment in which its failure was noticed."""
    recovery_ms: float | None = None
    """Of one that goes on: from the failure of the one before to its first token."""
    durable: float | None = None
    """Of one that goes on: when the flush began that made its first token durable."""
    generated: int = 0
    discarded: int = 0
    repeated: int = 0
    reclaim: str = ""
    reclaimed: float | None = None


@dataclass(slots=True, kw_only=True)
class SessionEvidence:
    """One session. Tokens are counts; ``billed`` is the sum of its lines in the ledger."""

    session: str
    state: str
    cause: str = ""
    error: str = ""
    evidence: str = "none"
    """The strongest kind that proves all that counts as delivered."""
    log: int = 0
    """Tokens that are durable, the terminal record apart."""
    sent: int = 0
    taken: int = 0
    cursor: int = 0
    acked: int = 0
    delivered: int = 0
    billed: int | None = None
    """None: it has not been settled."""
    lines: int = 0
    entries: int = 0
    """Of its settlements those that have their line in the ledger, of the same amount."""
    discarded: int = 0
    repeated: int = 0
    attempts: list[AttemptEvidence] = field(default_factory=list)

    @property
    def generated(self) -> int:
        """Tokens read from engines: those in the log, those discarded, those repeated.

        Not the sum over its attempts: what a killed gateway had read it could not write down.
        """
        return self.log + self.discarded + self.repeated


_TENANTS = "SELECT DISTINCT tenant_id FROM streaming_streamsession WHERE id = ANY(%s::uuid[])"

# Of the terminal record, which takes the last seq, nothing counts.
_SESSIONS = """
WITH page AS (
    SELECT id, state, cause, error_code FROM streaming_streamsession
    WHERE id > %s::uuid AND id <= %s::uuid AND tenant_id = ANY(%s) ORDER BY id LIMIT %s
)
SELECT p.id::text, p.state, p.cause, p.error_code, coalesce(u.evidence, 'none'),
    coalesce(u.log_tokens, f.durable_seq, 0), f.sent_seq, f.taken_seq, f.cursor_seq, f.acked_seq,
    coalesce(u.delivered_tokens, 0), b.tokens::int8, b.lines, b.entries
FROM page p
LEFT JOIN session_fence f ON f.session_id = p.id
LEFT JOIN billing_usagerecord u ON u.session_id = p.id
CROSS JOIN LATERAL (
    SELECT sum(t.output_tokens) FILTER (WHERE e.id IS NOT NULL) AS tokens, count(*) AS lines,
        count(e.id) FILTER (WHERE e.amount = t.amount) AS entries
    FROM billing_settlement t LEFT JOIN billing_ledgerentry e ON e.settlement_id = t.id
    WHERE t.usage_id = p.id
) b
ORDER BY p.id
"""

_ATTEMPTS = """
SELECT a.session_id::text, a.number, a.kind, a.node_name,
    extract(epoch FROM a.started_at)::float8, extract(epoch FROM a.first_token_at)::float8,
    extract(epoch FROM a.ended_at)::float8, coalesce(a.first_seq, 0), a.end_reason, a.cause, a.seam_grade, a.detection_ms,
    a.recovery_ms, extract(epoch FROM c.durable_at)::float8, a.generated_tokens,
    a.discarded_tokens, a.repeated_tokens, a.reclaim, extract(epoch FROM a.reclaimed_at)::float8
FROM streaming_attempt a JOIN streaming_streamsession s ON s.id = a.session_id
LEFT JOIN LATERAL (
    SELECT min(created_at) AS durable_at FROM streaming_tokencheckpoint
    WHERE a.number > 1 AND session_id = a.session_id AND expires_on = s.expires_on
    AND a.first_seq BETWEEN first_seq AND last_seq
) c ON true
WHERE a.session_id > %s::uuid AND a.session_id <= %s::uuid AND s.tenant_id = ANY(%s)
ORDER BY a.session_id, a.number
"""

_WASTE = """
SELECT w.kind, w.cause, sum(w.tokens)::int8 FROM billing_waste w
JOIN billing_usagerecord u ON u.session_id = w.usage_id
WHERE w.usage_id > %s::uuid AND w.usage_id <= %s::uuid AND u.tenant_id = ANY(%s)
GROUP BY 1, 2 ORDER BY 1, 2
"""

_UNSETTLED = """
SELECT (SELECT count(*) FROM streaming_outboxmessage
        WHERE handled_at IS NULL AND kind IN ('session_ended', 'session_suspended', 'session_delivered')),
    (SELECT count(*) FROM streaming_attempt WHERE reclaim = 'pending')
"""


def collect(
    directory: Path,
    sql: Sql | None,
    engines: Mapping[str, str],
    records: Iterable[StreamRecord],
    *,
    patience: float = 60.0,
) -> None:
    """Write ``evidence.json`` and ``sessions.jsonl``, while the cluster still runs.

    ``sql`` None: there is no gateway (engines are asked directly), or its database can't be reached.
    ``engines``: base URL by node; what ``gauges.Gauges`` has read meanwhile is summed up, and the
    engines are asked once now where it has read nothing. The sessions are those of ``records`` and
    what else their tenants have begun in that time: on a shared cluster use a tenant of your own.
    Settlements and reclaims that are under way are waited for, until ``patience`` seconds have
    brought none of them to an end.
    """
    told = gauges.readings(directory)
    known = {reading.engine for reading in told}
    for name, url in engines.items():
        if name not in known:
            told += _one_look(name, url)
    found: dict[str, Any] = {
        "collected": time.time(),
        "engines": dict.fromkeys(engines) | gauges.summary(told),
        "gateway": None,
    }
    sessions = sorted({UUID(record.session) for record in records if record.session})
    if sql is not None and sessions:
        found["gateway"] = _gateway(directory, sql, sessions, patience)
    (directory / FILE).write_text(json.dumps(found, indent=1), encoding="utf-8")


def _one_look(name: str, url: str) -> list[gauges.Reading]:
    try:
        return [gauges.look(name, url)]
    except (OSError, ValueError):  # dead or without figures: shown as "not told"
        return []


def _gateway(directory: Path, sql: Sql, sessions: list[UUID], patience: float) -> dict[str, Any]:
    waiting = _until_settled(sql, patience)
    before = time.time()
    theirs = sql("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    ahead = theirs - (before + time.time()) / 2
    step = max(1, len(sessions) // SAMPLE)
    tenants = [row[0] for row in sql(_TENANTS, [str(session) for session in sessions[::step]])]
    # The bounds are those of the times in their ids: a session that no reader has heard of counts too.
    first, last = _at_begin(sessions[0]), _at_end(sessions[-1])
    known = {str(session) for session in sessions}
    states: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    strangers = stranger_tokens = unsettled = 0
    with (directory / SESSIONS).open("w", encoding="utf-8") as file:
        for session in _pages(sql, first, last, tenants):
            states[session.state] += 1
            marks[session.evidence] += 1
            unsettled += session.billed is None
            if session.session not in known:
                strangers += 1
                stranger_tokens += session.generated
            file.write(json.dumps(_compact(session)) + "\n")
    return {
        "clock_ahead": ahead,
        "waiting": dict(zip(("settlements", "reclaims"), waiting, strict=True)),
        "tenants": len(tenants),
        "states": dict(states),
        "evidence": dict(marks),
        "unsettled": unsettled,
        "strangers": {"sessions": strangers, "generated": stranger_tokens},
        "waste": [
            {"kind": kind, "cause": cause, "tokens": tokens}
            for kind, cause, tokens in sql(_WASTE, str(first), str(last), tenants)
        ],
    }


def _until_settled(sql: Sql, patience: float) -> tuple[int, int]:
    """How many settlements and reclaims still wait when all is done, or patience has ended."""
    fewest = math.inf
    end = 0.0
    while True:
        settlements, reclaims = sql(_UNSETTLED)[0]
        waiting = settlements + reclaims
        if waiting < fewest:
            fewest, end = waiting, time.monotonic() + patience
        if not waiting or time.monotonic() > end:
            return settlements, reclaims
        time.sleep(0.5)


def _at_begin(session: UUID) -> UUID:
    return UUID(int=(session.int >> 80 << 80) - 1)


def _at_end(session: UUID) -> UUID:
    return UUID(int=session.int | (1 << 80) - 1)


def _pages(sql: Sql, first: UUID, last: UUID, tenants: list[int]) -> Iterator[SessionEvidence]:
    after = str(first)
    while rows := sql(_SESSIONS, after, str(last), tenants, PAGE):
        page = {row[0]: _session(row) for row in rows}
        for session, *columns in sql(_ATTEMPTS, after, rows[-1][0], tenants):
            attempt = AttemptEvidence(**dict(zip(_ATTEMPT_FIELDS, columns, strict=True)))
            page[session].attempts.append(attempt)
            page[session].discarded += attempt.discarded
            page[session].repeated += attempt.repeated
        yield from page.values()
        after = rows[-1][0]


_SESSION_FIELDS = (
    "session", "state", "cause", "error", "evidence", "log", "sent", "taken", "cursor", "acked",
    "delivered", "billed", "lines", "entries",
)  # fmt: skip
_ATTEMPT_FIELDS = tuple(AttemptEvidence.__slots__)


def _session(row: tuple[Any, ...]) -> SessionEvidence:
    return SessionEvidence(**dict(zip(_SESSION_FIELDS, row, strict=True)))


def _compact(session: SessionEvidence) -> dict[str, Any]:
    """As JSON, without what says nothing."""
    values = asdict(session)
    values["attempts"] = [
        {name: value for name, value in attempt.items() if value not in (None, "", 0)}
        for attempt in values["attempts"]
    ]
    return values


def evidence(directory: Path) -> dict[str, Any]:
    """What :func:`collect` has written; empty where it has not."""
    path = directory / FILE
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def sessions(directory: Path) -> Iterator[SessionEvidence]:
    path = directory / SESSIONS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            values = json.loads(line)
            values["attempts"] = [
                AttemptEvidence(**{"started": 0.0, **attempt}) for attempt in values["attempts"]
            ]
            yield SessionEvidence(**values)
