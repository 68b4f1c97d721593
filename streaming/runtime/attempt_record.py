"""What the log is told of an attempt: that it began, where it took over from another, how it ended."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from streaming.core.chunks import EngineUsage
from streaming.core.failures import AttemptFailed
from streaming.core.seams import SeamGrade
from streaming.engines.base import Generation
from streaming.fleet.nodes import Node
from streaming.runtime.live import LiveSession
from streaming.runtime.records import Record, RecordKind, now, printable


def attempt_started(
    session: LiveSession,
    node: Node,
    number: int,
    kind: str,
    grade: SeamGrade | None,
    generation: Generation,
) -> Record:
    return Record(
        RecordKind.ATTEMPT_STARTED,
        {
            "session_id": session.id,
            "number": number,
            "epoch": session.log.epoch,
            "node_id": node.id,
            "node_name": node.name,
            "engine_request_id": generation.request_id,
            "seam_grade": _stored(grade),
            "seam_note": _seam_note(node, grade, generation),
            "started_at": now(),
            "kind": kind,
        },
    )


def _stored(grade: SeamGrade | None) -> str:
    return grade.value if grade else ""


def _seam_note(node: Node, grade: SeamGrade | None, generation: Generation) -> str:
    """What the grade does not say: state of the engine that could not be carried over."""
    sampling = generation.sampling
    if grade is None or grade is SeamGrade.REGENERATED:
        return ""
    if node.dialect.name == "vllm" and sampling.presence_penalty:
        return "presence penalty carried as a bias: counted twice for tokens that recur"
    if sampling.temperature and node.dialect.name == "llamacpp":
        return "the engine's random generator restarted"
    return ""


def answer_went_on(
    session: LiveSession,
    node: Node,
    kind: str,
    grade: SeamGrade | None,
    at: datetime | None,
    recovery_ms: float,
) -> Record:
    """The time line's word for the first token behind a seam."""
    return Record(
        RecordKind.EVENT,
        {
            "session_id": session.id,
            "at": at,
            "kind": "moved" if kind == "migration" else "recovered",
            "seq": session.log.last_seq,
            "data": {
                "node": node.name,
                "grade": _stored(grade),
                "gap_ms": round(recovery_ms, 1),
            },
        },
    )


def attempt_ended(
    session_id: UUID,
    number: int,
    *,
    reason: str,
    detail: str,
    grade: SeamGrade | None,
    seqs: tuple[int, int] | None,
    first_token_at: datetime | None,
    ttft_ms: float | None,
    detection_ms: float | None,
    recovery_ms: float | None,
    generated: int,
    discarded: int,
    repeated: int,
    usage: EngineUsage,
    engine_finished: bool,
) -> Record:
    """``seqs``: the first and the last token of its own; None: it has none."""
    first_seq, last_seq = seqs or (None, None)
    return Record(
        RecordKind.ATTEMPT_ENDED,
        {
            "session_id": session_id,
            "number": number,
            "first_token_at": first_token_at,
            "ended_at": now(),
            "first_seq": first_seq,
            "last_seq": last_seq,
            "end_reason": reason,
            "end_detail": printable(detail, 500),
            "seam_grade": _stored(grade),
            "ttft_ms": ttft_ms,
            "detection_ms": detection_ms,
            "recovery_ms": recovery_ms,
            "cached_prompt_tokens": usage.cached_prompt_tokens,
            "generated_tokens": generated,
            "discarded_tokens": discarded,
            "repeated_tokens": repeated,
            "engine_prompt_tokens": usage.prompt_tokens,
            "engine_completion_tokens": usage.completion_tokens,
            "reclaim": "" if engine_finished else "pending",
        },
    )


def attempt_not_asked(
    session: LiveSession, node: Node, number: int, kind: str, failure: AttemptFailed
) -> tuple[Record, Record]:
    """An attempt that failed before its engine was asked to generate."""
    at = now()
    common = {"session_id": session.id, "number": number, "seam_grade": ""}
    began = {
        "epoch": session.log.epoch,
        "node_id": node.id,
        "node_name": node.name,
        "engine_request_id": "",
        "seam_note": "",
        "started_at": at,
        "kind": kind,
    }
    ended = {
        "ended_at": at,
        "end_reason": failure.cause.value,
        "end_detail": printable(failure.detail, 500),
        "discarded_tokens": 0,
        "reclaim": "",
    }
    return (
        Record(RecordKind.ATTEMPT_STARTED, {**common, **began}),
        Record(RecordKind.ATTEMPT_ENDED, {**common, **ended}),
    )
