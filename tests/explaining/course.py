"""A session's course, written as its gateways write it: step by step, so that triggers see each.

course = Course(began=yesterday)
course.attempt("gpu-3")
course.tokens(412)
course.fails("connection_reset", detection_ms=20)
course.attempt("gpu-1", kind="failover", seam_grade="exact")
course.tokens(321, recovery_ms=40)
course.finishes()
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from streaming.core.ids import reference_code
from streaming.models import (
    Attempt,
    SessionEvent,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)


class Course:
    """``now`` moves with every step; a token takes 20 ms."""

    def __init__(
        self, tenant: str = "acme", *, began: datetime | None = None, **columns: Any
    ) -> None:
        self.now = began or timezone.now() - timedelta(hours=1)
        owner, _ = Tenant.objects.get_or_create(name=tenant)
        values = {
            "reference": reference_code(), "protocol": "openai", "model": "small",
            "model_requested": "small", "request": b"{}", "state": "created", **columns,
        }  # fmt: skip
        session = StreamSession.objects.create(tenant=owner, created_at=self.now, **values)
        self.id = session.pk
        self.seq = self.number = 0
        self._sent_in_attempt = 0
        SessionFence.objects.create(session=session, epoch=1, durable_seq=0)
        self.event("created", seq=0)

    @property
    def row(self) -> StreamSession:
        return StreamSession.objects.get(pk=self.id)

    def event(self, kind: str, seq: int | None = None, **data: Any) -> None:
        seq = self.seq if seq is None else seq
        SessionEvent.objects.create(session_id=self.id, at=self.now, kind=kind, seq=seq, data=data)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def change(self, **columns: Any) -> None:
        StreamSession.objects.filter(pk=self.id).update(**columns)

    def joined(self, reader: str = "1-1", process: int = 1) -> None:
        self.event("reader_joined", reader=reader, process=process)

    def left(self, how: str, reader: str = "1-1", process: int = 1) -> None:
        self.event("reader_left", reader=reader, process=process, how=how)

    def attempt(self, node: str, kind: str = "first", seam_grade: str = "") -> None:
        self.number += 1
        self._sent_in_attempt = 0
        Attempt.objects.create(
            session_id=self.id, number=self.number, epoch=1, node_name=node, kind=kind,
            engine_request_id=f"{self.id}-{self.number}", seam_grade=seam_grade,
            started_at=self.now,
        )  # fmt: skip

    def tokens(self, count: int, *, seconds: float = 0.04) -> None:
        """The first comes after ``seconds``; then the session streams."""
        self.wait(seconds)
        first, self.seq = self.seq + 1, self.seq + count
        began = self.now
        self._first = (began, first) if not self._sent_in_attempt else self._first
        self._sent_in_attempt += count
        self.wait(0.02 * (count - 1))
        for at, begin, end in ((began, first, first), (self.now, first + 1, self.seq)):
            if begin <= end:
                TokenCheckpoint.objects.create(
                    session_id=self.id, epoch=1, attempt=self.number, first_seq=begin,
                    last_seq=end, token_ids=b"", text=b"", text_ends=b"", digest=b"",
                    created_at=at,
                )  # fmt: skip
        SessionFence.objects.filter(session=self.id).update(
            durable_seq=self.seq, sent_seq=self.seq, cursor_seq=self.seq
        )
        if self.row.state != "streaming":
            self.change(state="streaming")

    def ends(self, reason: str, **columns: Any) -> None:
        """The attempt under way."""
        if self._sent_in_attempt:
            at, seq = self._first
            columns |= {"first_token_at": at, "first_seq": seq, "last_seq": self.seq}
        Attempt.objects.filter(session=self.id, number=self.number).update(
            end_reason=reason, ended_at=self.now, **columns
        )

    def fails(self, reason: str = "connection_reset", *, detection_ms: float = 20.0) -> None:
        self.wait(detection_ms / 1000)
        self.ends(reason, detection_ms=detection_ms)
        self.change(state="recovering", failovers=self.row.failovers + 1)
        self.event("recovering", cause=reason)

    def is_attributed(self, cause: str, number: int | None = None) -> None:
        """Seconds later."""
        Attempt.objects.filter(session=self.id, number=number or self.number).update(
            cause=cause, evidence={"because": "So it is."}
        )

    def goes_on(self, node: str = "gpu-1", *, after_ms: float = 40.0, count: int = 10) -> None:
        self.attempt(node, "failover", "exact")
        self.tokens(count, seconds=after_ms / 1000)
        self.event("recovered", node=node, grade="exact", gap_ms=after_ms)

    def finishes(self, state: str = "completed", reason: str = "finished", **columns: Any) -> None:
        recovery = {"recovery_ms": 40.0} if self.number > 1 else {}
        self.ends(reason, **recovery)
        self.change(
            state=state, ended_at=self.now, completion_tokens=self.seq,
            finish_reason="stop" if state == "completed" else "", **columns,
        )  # fmt: skip
        self.event(state, seq=self.seq + 1, cause=columns.get("cause", ""))

    def suspends(self, cause: str) -> None:
        self.ends("cancelled")
        self.change(state="suspended", cause=cause, completion_tokens=self.seq)
        self.event("suspended", cause=cause)


def normal(tenant: str = "acme", **columns: Any) -> Course:
    """A session that nothing interrupted."""
    course = Course(tenant, **columns)
    course.joined()
    course.attempt("gpu-1")
    course.tokens(20)
    course.finishes()
    return course


def recovered(tenant: str = "acme", *, cause: str = "engine_oom", **columns: Any) -> Course:
    """One that broke off after token 20 on gpu-3 and went on, unnoticed, on gpu-1."""
    course = Course(tenant, **columns)
    course.joined()
    course.attempt("gpu-3")
    course.tokens(20)
    course.fails()
    if cause:
        course.is_attributed(cause)
    course.goes_on()
    course.finishes()
    return course


def lost(tenant: str = "acme", *, cause: str = "engine_frozen", **columns: Any) -> Course:
    """One that broke off after token 20 on gpu-3 and failed."""
    course = Course(tenant, **columns)
    course.joined()
    course.attempt("gpu-3")
    course.tokens(20)
    course.fails("stalled", detection_ms=5000)
    if cause:
        course.is_attributed(cause)
    course.change(
        state="failed", ended_at=course.now, completion_tokens=20, cause=cause,
        error_code="failover_exhausted",
    )  # fmt: skip
    course.event("failed", seq=21, cause=cause)
    return course
