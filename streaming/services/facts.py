"""What is stored of sessions, as ``core.story`` tells it: four queries, however many they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from streaming.core.story import Facts, Happening, Try
from streaming.models import Attempt, SessionEvent, StreamSession
from streaming.services.sql import rows

# What the log itself tells of attempts: their gateways may have died before they could.
_RUNS = """
SELECT session_id, attempt, min(first_seq), max(last_seq - (terminal IS NOT NULL)::int),
    min(created_at), max(created_at)
FROM streaming_tokencheckpoint
WHERE session_id = ANY(%s) AND expires_on = ANY(%s)
    AND last_seq - (terminal IS NOT NULL)::int >= first_seq
GROUP BY session_id, attempt
"""

_OF_SESSION = (
    "id", "state", "finish_reason", "error_code", "cause", "created_at", "first_token_at",
    "ended_at", "completion_tokens", "fence__durable_seq", "fence__delivered_seq",
    "expires_on",
)  # fmt: skip
_OF_ATTEMPT = (
    "session_id", "number", "kind", "node_name", "started_at", "first_token_at", "ended_at",
    "first_seq", "last_seq", "end_reason", "end_detail", "cause", "seam_grade", "seam_note",
    "detection_ms", "recovery_ms", "discarded_tokens", "evidence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    first_seq: int
    last_seq: int
    first_at: datetime
    last_at: datetime


def facts_of(session_id: UUID, *, charged: int | None = None) -> Facts:
    """All that is known of one session. ``charged``: its billed tokens, where somebody counts them.

    Raises ``StreamSession.DoesNotExist``.
    """
    found = facts_of_many([session_id], charged={} if charged is None else {session_id: charged})
    if session_id not in found:
        raise StreamSession.DoesNotExist(f"there is no session {session_id}")
    return found[session_id]


def facts_of_many(
    session_ids: Collection[UUID], *, charged: Mapping[UUID, int] | None = None
) -> dict[UUID, Facts]:
    """The facts of those sessions that there are; four queries."""
    ids = list(session_ids)
    sessions = list(StreamSession.objects.filter(pk__in=ids).values(*_OF_SESSION))
    days = list({row["expires_on"] for row in sessions})  # no other partition is read
    runs: dict[tuple[UUID, int], _Run] = {
        (session_id, attempt): _Run(*run) for session_id, attempt, *run in rows(_RUNS, ids, days)
    }
    tries: dict[UUID, list[Try]] = defaultdict(list)
    attempts = Attempt.objects.filter(session__in=ids).order_by("number")
    for row in attempts.values(*_OF_ATTEMPT):
        key = row["session_id"]
        tries[key].append(_try(row, runs.get((key, row["number"]))))
    happenings: dict[UUID, list[Happening]] = defaultdict(list)
    events = SessionEvent.objects.filter(session__in=ids).order_by("session", "pk")
    for key, at, kind, seq, data in events.values_list("session_id", "at", "kind", "seq", "data"):
        told = data if isinstance(data, dict) else {}
        happenings[key].append(Happening(at=at, kind=kind, seq=seq, data=told))
    return {
        row["id"]: _facts(row, tries[row["id"]], happenings[row["id"]], charged or {})
        for row in sessions
    }


def _facts(
    row: dict[str, Any],
    tries: list[Try],
    happenings: list[Happening],
    charged: Mapping[UUID, int],
) -> Facts:
    tokens = row["completion_tokens"]
    if row["ended_at"] is None:  # the session's own count is written at its end
        tokens = max(tokens, row["fence__durable_seq"] or 0)
    return Facts(
        state=row["state"],
        finish_reason=row["finish_reason"],
        error_code=row["error_code"],
        cause=row["cause"],
        created_at=row["created_at"],
        first_token_at=row["first_token_at"],
        ended_at=row["ended_at"],
        tokens=tokens,
        # The mark may stand on the terminal record, which has a number too.
        delivered=min(row["fence__delivered_seq"] or 0, tokens),
        tries=tuple(tries),
        happenings=tuple(happenings),
        charged=charged.get(row["id"]),
    )


def _try(row: dict[str, Any], run: _Run | None) -> Try:
    first_seq, last_seq = row["first_seq"], row["last_seq"]
    first_at = row["first_token_at"]
    if run is not None:
        first_seq = run.first_seq if first_seq is None else first_seq
        last_seq = max(run.last_seq, last_seq or 0)
        first_at = first_at or run.first_at
    return Try(
        number=row["number"],
        kind=row["kind"],
        node=row["node_name"],
        started_at=row["started_at"],
        first_token_at=first_at,
        last_token_at=None if run is None else run.last_at,
        ended_at=row["ended_at"],
        first_seq=first_seq,
        last_seq=last_seq,
        end_reason=row["end_reason"],
        end_detail=row["end_detail"],
        cause=row["cause"],
        grade=row["seam_grade"],
        seam_note=row["seam_note"],
        detection_ms=row["detection_ms"],
        recovery_ms=row["recovery_ms"],
        discarded=row["discarded_tokens"],
        evidence=row["evidence"] if isinstance(row["evidence"], dict) else {},
    )
