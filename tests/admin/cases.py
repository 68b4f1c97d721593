"""Sessions with a course, as gateways write them: for what explains them to people."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from streaming.core.ids import uuid7
from streaming.models import (
    Attempt,
    GatewayInstance,
    InferenceNode,
    SessionEvent,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)

BEGAN = datetime(2026, 11, 3, 2, 13, 4, tzinfo=UTC)


def at(milliseconds: float) -> datetime:
    """So long after the session began."""
    return BEGAN + timedelta(milliseconds=milliseconds)


def node(name: str) -> InferenceNode:
    return InferenceNode.objects.get_or_create(
        name=name, defaults={"dialect": "vllm", "base_url": f"http://{name}:8000"}
    )[0]


def add_course(
    *,
    events: Sequence[tuple[float, str, int, dict[str, Any]]] = (),
    tokens: int = 0,
    **columns: Any,
) -> StreamSession:
    """A session without attempts; ``events``: when (ms), kind, seq and data."""
    tenant, _ = Tenant.objects.get_or_create(name="acme", defaults={"display_name": "Acme & Sons"})
    owner = GatewayInstance.objects.create(
        hostname="gate-1", pid=1, started_at=BEGAN, heartbeat_at=BEGAN
    )
    ended = columns.get("ended_at")
    values = {
        "id": uuid7(), "reference": "K7Q-4MX", "tenant": tenant, "end_user": "visitor-7",
        "request_id": "req-1", "protocol": "openai", "model": "small", "model_requested": "small",
        "request": b'{"messages": [{"role": "user", "content": "Tell me of the lighthouse."}], "top_p": 1}',
        "state": "completed" if ended else "streaming", "owner": owner, "created_at": BEGAN,
        "completion_tokens": tokens,
    }  # fmt: skip
    session = StreamSession.objects.create(**{**values, **columns})
    end = tokens + 1 if ended else tokens
    SessionFence.objects.create(
        session=session, epoch=1, durable_seq=end, sent_seq=end, taken_seq=end
    )
    SessionEvent.objects.bulk_create(
        SessionEvent(session=session, at=at(when), kind=kind, seq=seq, data=data)
        for when, kind, seq, data in events
    )
    return session


def add_attempt(
    session: StreamSession, number: int, on: str, start: float, end: float | None, **columns: Any
) -> Attempt:
    """``start`` and ``end`` in ms; ``first``: its first token."""
    first = columns.pop("first", None)
    values = {
        "epoch": 1, "node": node(on), "node_name": on, "started_at": at(start),
        "engine_request_id": f"{session.pk}-{number}",
        "ended_at": None if end is None else at(end),
        "first_token_at": None if first is None else at(first),
    }  # fmt: skip
    return Attempt.objects.create(session=session, number=number, **{**values, **columns})


def add_log(
    session: StreamSession, attempt: int, first: int, last: int, start: float, end: float,
    text: str = "word ", rows: int = 10, terminal: bytes | None = None,
) -> None:  # fmt: skip
    """Checkpoints of tokens ``first``..``last``, evenly over the time; each token says ``text``."""
    count = last - first + 1
    rows = min(rows, count)
    for n in range(rows):
        low, high = first + count * n // rows, first + count * (n + 1) // rows - 1
        said = text * (high - low + 1)
        TokenCheckpoint.objects.create(
            session=session, epoch=1, attempt=attempt, first_seq=low, last_seq=high,
            text=said.encode(), token_ids=array("i", range(low, high + 1)).tobytes(),
            text_ends=array("i", range(len(text), len(said) + 1, len(text))).tobytes(),
            digest=bytes([high % 256]) * 16, terminal=terminal,
            created_at=at(start + (end - start) * (n + 1) / rows),
        )  # fmt: skip


def recovered() -> StreamSession:
    """gpu-3 runs out of memory after token 412; gpu-1 goes on after 38 ms, and ends with token 733."""
    session = add_course(
        events=[
            (0, "created", 0, {"protocol": "openai"}),
            (2, "reader_joined", 0, {"reader": "1-1", "process": 1, "protocol": "openai", "cursor": 0}),
            (8241, "recovering", 412, {"node": "gpu-3", "cause": "engine_error"}),
            (8278, "recovered", 412, {"node": "gpu-1", "grade": "exact", "gap_ms": 37.0}),
            (14702, "completed", 734, {}),
        ],
        tokens=733, first_token_at=at(310), ended_at=at(14702), finish_reason="stop", failovers=1,
        outcome="recovered",
    )  # fmt: skip
    add_attempt(
        session, 1, "gpu-3", 5, 8241, first=310, first_seq=1, last_seq=412, ttft_ms=305.0,
        end_reason="engine_error", end_detail="CUDA out of memory. Tried to allocate 2.00 GiB",
        cause="engine_oom", detection_ms=1.0, discarded_tokens=2, reclaim="verified",
        evidence={"because": "The engine says that it ran out of memory.", "seen": "engine_error",
                  "said": "CUDA out of memory", "siblings_failed": 4, "siblings_alive": 0},
    )  # fmt: skip
    add_attempt(
        session, 2, "gpu-1", 8243, 14702, first=8278, first_seq=413, last_seq=733, ttft_ms=35.0,
        kind="failover", seam_grade="exact", end_reason="finished", end_detail="stop", recovery_ms=37.0,
    )  # fmt: skip
    add_log(session, 1, 1, 412, 310, 8240)
    add_log(session, 2, 413, 733, 8278, 14700)
    return session
