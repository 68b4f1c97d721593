"""A course as rows of all tables that tell of it."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from gateway_project.demo.copying import Batch, Copied, moment
from gateway_project.demo.course import FINISHED, RESUME_SECONDS, Course, Try
from gateway_project.demo.fleet import ALIASES
from streaming.core.digest import RunningDigest
from streaming.core.retention import expiry_day
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState

OPEN = b"\t\\N\tt"
"""The end of a row of the log that does not close it."""
_NO_TOKENS = RunningDigest().digest()
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def write(course: Course, batch: Batch, *, announced: bool) -> None:
    """Everything that is stored of it; ``announced``: have billing hear of it."""
    answer, ended = course.answer, course.ended_at is not None
    session_id = _uuid7(course.created_at, course.chance)
    began = datetime.fromtimestamp(course.created_at, UTC)
    expires_on = expiry_day(began, course.customer.content_days)
    resume_until = None
    if course.state is SessionState.SUSPENDED and course.suspended_at is not None:
        resume_until = moment(course.suspended_at + RESUME_SECONDS)
    letters = "".join(course.chance.choices(_LETTERS, k=6))
    batch.add(
        "streaming_streamsession",
        (
            session_id, f"{letters[:3]}-{letters[3:]}", course.customer.id,
            course.chance.choices(course.customer.keys, (4, 1)[: len(course.customer.keys)])[0],
            course.user, f"req_{course.chance.getrandbits(64):016x}", course.protocol, course.model,
            ALIASES[course.model], answer.request, course.chance.getrandbits(31),
            answer.prompt_ids, answer.prompt_tokens, course.state.value, course.finish_reason,
            course.error_code, course.cause, course.evidence, "suspend", _at(course.suspended_at),
            resume_until, course.owner, answer.cached_tokens, course.tokens,
            sum(run.discarded + run.repeated for run in course.tries), course.failovers,
            moment(course.created_at), _at(course.first_token_at), _at(course.ended_at), expires_on,
        ),
    )  # fmt: skip
    marks = (course.sent, course.taken, course.cursor, course.acked)
    batch.add(
        "session_fence",
        (session_id, course.epoch, course.tokens + ended, *marks, False, expires_on),
    )
    for run in course.tries:
        batch.add("streaming_attempt", _columns(course, run, session_id))
    for at, kind, seq, data in sorted(course.events, key=lambda event: event[0]):
        batch.add("streaming_sessionevent", (session_id, moment(at), kind, seq, data))
    _write_log(course, batch, session_id, expires_on)
    if announced:
        for kind, at in course.announced:
            batch.add("streaming_outboxmessage", (session_id, kind, {}, moment(at)))
    if course.chance.random() < 0.04:
        batch.add(
            "streaming_idempotencykey",
            (
                course.customer.id, course.user, f"order-{int(course.created_at * 1000):x}-{course.chance.getrandbits(32):08x}",
                course.chance.randbytes(32), session_id, moment(course.created_at),
            ),
        )  # fmt: skip
    batch.sessions += 1
    if not course.is_plain:
        batch.add("streaming_changedsession", (session_id,))


def _write_log(course: Course, batch: Batch, session_id: UUID, expires_on: date) -> None:
    head = f"{session_id}\t{expires_on}\t"
    for number, (at, epoch, attempt) in enumerate(course.flushed):
        line = f"{head}{epoch}\t{attempt}\t{moment(at)}\t".encode()
        batch.add_copied("streaming_tokencheckpoint", line + course.answer.rows[number] + OPEN)
    if course.terminal:
        seq, nothing = course.tokens + 1, b""
        digest = course.answer.digests[course.done - 1] if course.done else _NO_TOKENS
        batch.add(
            "streaming_tokencheckpoint",
            (
                session_id, expires_on, course.epoch, max(len(course.tries), 1), moment(course.ended_at or 0.0),
                seq, seq, nothing, nothing, nothing, digest, course.terminal, True,
            ),
        )  # fmt: skip
    batch.checkpoints += len(course.flushed) + bool(course.terminal)


def _columns(course: Course, run: Try, session_id: UUID) -> tuple[Any, ...]:
    finished = run.reason == FINISHED
    prompt = course.answer.prompt_tokens
    if run.grade in (SeamGrade.EXACT.value, SeamGrade.TEXT.value) and run.first_seq:
        prompt += run.first_seq - 1
    ttft = None if run.first_at is None else (run.first_at - run.started_at) * 1000
    is_noted = run.is_noted
    return (
        session_id, run.number, run.kind, run.epoch, course.world.nodes[run.node], run.node,
        f"{session_id}-{run.number}", run.grade, "", moment(run.started_at),
        _at(run.first_at) if is_noted else None, _at(run.ended_at),
        run.first_seq if is_noted else None, run.last_seq if is_noted else None, run.reason,
        run.detail, run.cause, run.evidence, "" if finished else "verified",
        None if finished or run.ended_at is None else moment(run.ended_at + 0.8),
        ttft if is_noted else None, run.detection_ms, run.recovery_ms,
        course.answer.cached_tokens if finished and not run.grade else None,
        run.generated if is_noted else 0, run.discarded, run.repeated,
        prompt if finished else None, run.generated if finished else None,
    )  # fmt: skip


def _at(value: float | None) -> Copied | None:
    return None if value is None else moment(value)


def _uuid7(at: float, chance: random.Random) -> UUID:
    """As ``core.ids.uuid7``, of another time."""
    value = int(at * 1000) << 80 | chance.getrandbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
