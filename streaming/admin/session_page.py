"""What the page of one session says, as its template takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from streaming.admin import answer
from streaming.admin.bundle import audit_rows, end_user_digest
from streaming.admin.case import Case
from streaming.admin.content import without_words, words
from streaming.admin.evidence import in_words
from streaming.admin.finance import finance
from streaming.admin.timeline import LEGEND, draw
from streaming.admin.words import (
    DELIVERED_BY,
    ENDS,
    GRADES,
    KINDS,
    OUTCOMES,
    PROTOCOLS,
    RECLAIMS,
    STATES,
    milliseconds,
    sentence,
    token_of,
    word,
)
from streaming.core.connection_health import band_of
from streaming.core.course import Try
from streaming.core.wording import cause_in_words
from streaming.models import Attempt, StreamSession

UNFAILED = frozenset({"finished", "cancelled", "overtaken", "migrated"})
"""Ends of attempts that are no failures, and of which no engine has said anything."""

MOST_EVENTS = 300
MOST_ROWS = 300

TONES = {"recovered": "info", "suspended": "warn", "lost": "bad", "left": "quiet", "": "good"}
_ENDS_OF_STATE = {"failed": "bad", "suspended": "warn", "recovering": "warn", "abandoned": "quiet"}


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One line of the table of attempts, in words. ``said``: content, or empty."""

    number: int
    kind: str
    node: str
    node_url: str
    grade: str
    grade_meaning: str
    seam_note: str
    tokens: str
    end: str
    failed: bool
    said: str
    cause: str
    evidence: str
    first_token: str
    detection: str
    recovery: str
    discarded: int
    reclaim: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event in words. ``kind``: as stored, for who looks for it elsewhere."""

    at: datetime
    token: int
    words: str
    kind: str


def context_of(request: HttpRequest, case: Case, *, revealed: bool) -> dict[str, Any]:
    """For ``admin/streaming/session.html``. ``revealed``: content is shown, which was audited."""
    session = case.session
    outcome = case.story.outcome.value if case.story.outcome is not None else ""
    picture = case.picture
    rows = picture.rows()
    billing = finance().session_panel(request, session)
    return {
        "case": case,
        "outcome": outcome,
        "outcome_words": _outcome_words(session, outcome),
        "tone": TONES.get(outcome, "quiet") if outcome else _tone_of_state(session.state),
        "state_words": word(STATES, session.state),
        "cause_words": cause_in_words(session.cause) if session.cause else "",
        "protocol_words": word(PROTOCOLS, session.protocol),
        "evidence_words": _evidence(session.evidence, revealed),
        "delivered_words": _delivered(session),
        "health_words": "" if session.health is None else band_of(session.health).value,
        "links": _links(request, session),
        "timeline": draw(
            picture, title=f"Time line of session {session.reference}",
            description=f"{case.story.sentence} The table below says the same in words.",
        ),
        "legend": LEGEND,
        "left_out": picture.left_out,
        "timeline_rows": rows[:MOST_ROWS],
        "timeline_rows_left_out": max(len(rows) - MOST_ROWS, 0),
        "attempts": attempt_rows(case, revealed, _may_view(request, "inferencenode")),
        "attempts_left_out": len(case.facts.tries) - len(case.attempts),
        "events": event_rows(case)[-MOST_EVENTS:],
        "events_left_out": max(len(case.facts.happenings) - MOST_EVENTS, 0),
        "revealed": revealed,
        "content": _content(case) if revealed and session.purged_at is None else None,
        "end_user_digest": end_user_digest(session),
        "billing": billing,
        "audit": audit_rows(session.pk, with_billing=bool(billing)),
    }  # fmt: skip


def attempt_rows(case: Case, revealed: bool, may_view_nodes: bool) -> list[AttemptRow]:
    """The attempts in words."""
    tries = {one.number: one for one in case.facts.tries}
    return [
        _attempt_row(attempt, tries.get(attempt.number), revealed, may_view_nodes)
        for attempt in case.attempts
    ]


def event_rows(case: Case) -> list[EventRow]:
    """The events in words, the newest last."""
    return [
        EventRow(one.at, token_of(one), sentence(one), one.kind) for one in case.facts.happenings
    ]


def _attempt_row(
    attempt: Attempt, known: Try | None, revealed: bool, may_view_nodes: bool
) -> AttemptRow:
    first, last = attempt.first_seq, attempt.last_seq
    if known is not None:  # the log tells of one that could not be written down, or still runs
        first, last = known.first_seq, known.last_seq
    linked = may_view_nodes and attempt.node_id is not None
    return AttemptRow(
        number=attempt.number,
        kind=word(KINDS, attempt.kind),
        node=attempt.node_name,
        node_url=reverse("admin:streaming_inferencenode_change", args=[attempt.node_id])
        if linked
        else "",
        grade=attempt.seam_grade,
        grade_meaning=word(GRADES, attempt.seam_grade) if attempt.seam_grade else "",
        seam_note=attempt.seam_note,
        tokens="none" if first is None or not last else f"{first:,}–{last:,}",
        end=word(ENDS, attempt.end_reason),
        failed=attempt.end_reason not in {"", *UNFAILED},
        said=_said(attempt, revealed),
        cause=cause_in_words(attempt.cause) if attempt.cause else "",
        evidence=_evidence(attempt.evidence, with_words=False),
        first_token=milliseconds(attempt.ttft_ms),
        detection=milliseconds(attempt.detection_ms),
        recovery=milliseconds(attempt.recovery_ms),
        discarded=attempt.discarded_tokens,
        reclaim="" if attempt.ended_at is None else word(RECLAIMS, attempt.reclaim),
        started_at=attempt.started_at,
    )


def _said(attempt: Attempt, revealed: bool) -> str:
    return "" if attempt.end_reason in UNFAILED else words(attempt.end_detail, revealed)


def _evidence(evidence: Any, with_words: bool) -> str:
    if not isinstance(evidence, Mapping):  # of another version
        return "-"
    return in_words(evidence if with_words else without_words(evidence))


def _outcome_words(session: StreamSession, outcome: str) -> str:
    if outcome or session.state == "completed":
        return word(OUTCOMES, outcome)
    return word(STATES, session.state).capitalize()


def _tone_of_state(state: str) -> str:
    return _ENDS_OF_STATE.get(state, "good" if state == "completed" else "info")


def _delivered(session: StreamSession) -> str:
    fence = getattr(session, "fence", None)
    return word(DELIVERED_BY, fence.evidence) if fence is not None else ""


def _links(request: HttpRequest, session: StreamSession) -> dict[str, str]:
    """Where the viewer may go from here, by what there is."""
    links = {}
    if _may_view(request, "tenant"):
        links["tenant"] = reverse("admin:streaming_tenant_change", args=[session.tenant_id])
    if session.api_key_id is not None and _may_view(request, "apikey"):
        links["api_key"] = reverse("admin:streaming_apikey_change", args=[session.api_key_id])
    if session.incident_id is not None and _may_view(request, "incident"):
        links["incident"] = reverse("admin:streaming_incident_change", args=[session.incident_id])
    if session.owner_id is not None and _may_view(request, "gatewayinstance"):
        links["owner"] = reverse("admin:streaming_gatewayinstance_change", args=[session.owner_id])
    for model, name in (("tokencheckpoint", "checkpoints"), ("sessionevent", "events")):
        if _may_view(request, model):
            links[name] = f"{reverse(f'admin:streaming_{model}_changelist')}?q={session.pk}"
    return links


def _may_view(request: HttpRequest, model: str) -> bool:
    return request.user.has_perm(f"streaming.view_{model}")


def _content(case: Case) -> dict[str, Any]:
    messages, rest = answer.request_of(case.session)
    parts = answer.parts_of(case.session)
    shown: Sequence[answer.Shown] = answer.shown(parts, case.attempts, case.story.interruptions)
    return {"messages": messages, "rest": rest, "parts": shown}
