"""The evidence of one session in one file: what happened, how it was judged, and what was billed.

Made to leave the house. The end user is a keyed digest, which tells whether two bundles are about the
same person and nothing else; content, and what engines said, which may quote it, are in it only where
they were revealed to somebody who may see them.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils.crypto import salted_hmac

from streaming.admin.answer import parts_of
from streaming.admin.case import Case, case_of
from streaming.admin.finance import AuditRow, finance
from streaming.admin.words import RECLAIMS, sentence, token_of, word
from streaming.core.connection_health import band_of
from streaming.models import Attempt, StreamSession

FORMAT = "unbroken.session-evidence"
VERSION = 1

SESSION_COLUMNS = (
    "reference", "request_id", "protocol", "model", "model_requested", "seed", "state",
    "finish_reason", "error_code", "cause", "on_disconnect", "prompt_tokens", "cached_prompt_tokens",
    "completion_tokens", "discarded_tokens", "failovers", "created_at", "first_token_at", "ended_at",
    "suspended_at", "resume_until", "purged_at", "level", "variant", "health", "content_action",
    "content_rule", "embed_token_id",
)  # fmt: skip
ATTEMPT_COLUMNS = (
    "number", "kind", "node_name", "engine_request_id", "epoch", "seam_grade", "seam_note",
    "started_at", "first_token_at", "ended_at", "first_seq", "last_seq", "end_reason", "cause",
    "ttft_ms", "detection_ms", "recovery_ms", "generated_tokens", "discarded_tokens",
    "repeated_tokens", "reclaim", "reclaimed_at",
)  # fmt: skip
MASKED = "masked: may quote content"
OF_NO_MONEY = ("session.", "content.", "evidence.")
"""How the actions begin that the audit log has of a session and that name no amounts."""


def bundle(
    session_id: UUID, *, with_content: bool = False, with_billing: bool = True
) -> dict[str, Any]:
    """The evidence as JSON: times in UTC, amounts and digests as strings.

    ``sha256`` is over all the rest, as ``canonical`` spells it. Raises ``StreamSession.DoesNotExist``.
    """
    session = StreamSession.objects.select_related("tenant", "api_key", "owner", "fence").get(
        pk=session_id
    )
    return bundle_of(case_of(session), with_content=with_content, with_billing=with_billing)


def bundle_of(case: Case, *, with_content: bool, with_billing: bool) -> dict[str, Any]:
    """The same of what has been read already."""
    session = case.session
    told = {
        "format": FORMAT,
        "version": VERSION,
        "made_at": case.at,
        "masked": not with_content,
        "sentence": case.story.sentence,
        "session": _session(session, with_content),
        "story": {
            "outcome": case.story.outcome,
            "interruptions": [_with_flag(one) for one in case.story.interruptions],
            "absences": [dataclasses.asdict(one) for one in case.story.absences],
        },
        "attempts": [_attempt(one, with_content) for one in case.attempts],
        "attempts_left_out": len(case.facts.tries) - len(case.attempts),
        "events": [
            {
                "at": one.at, "kind": one.kind, "token": token_of(one), "data": one.data,
                "in_words": sentence(one),
            }
            for one in case.facts.happenings
        ],
        "log": _log(case),
        "billing": finance().evidence(session.pk) if with_billing else None,
        "audit": [dataclasses.asdict(row) for row in audit_rows(session.pk, with_billing)],
        "content": _content(session) if with_content else None,
    }  # fmt: skip
    plain = json.loads(canonical(told))
    return {**plain, "sha256": hashlib.sha256(canonical(plain)).hexdigest()}


def audit_rows(session_id: UUID, with_billing: bool) -> list[AuditRow]:
    """What the audit log has of a session; without ``with_billing`` nothing of money."""
    return [
        row
        for row in finance().audit_rows(session_id)
        if with_billing or row.action.startswith(OF_NO_MONEY)
    ]


def canonical(told: Mapping[str, Any]) -> bytes:
    """The one spelling that the digest is over: sorted names, no spaces, nothing but ASCII."""
    return json.dumps(told, sort_keys=True, separators=(",", ":"), default=_plain).encode()


def end_user_digest(session: StreamSession) -> str:
    """Tells one end user from another, to nobody who does not know them already; empty for none."""
    if not session.end_user:
        return ""
    said = f"{session.tenant_id}:{session.end_user}"
    return salted_hmac("unbroken.evidence.end_user", said, algorithm="sha256").hexdigest()[:20]


def _session(session: StreamSession, with_content: bool) -> dict[str, Any]:
    fence = getattr(session, "fence", None)
    return {
        "id": session.pk,
        **{name: getattr(session, name) for name in SESSION_COLUMNS},
        "tenant": session.tenant.name,
        "api_key": session.api_key.prefix if session.api_key is not None else None,
        "end_user_digest": end_user_digest(session),
        "health_in_words": "" if session.health is None else band_of(session.health).value,
        "evidence": _evidence(session.evidence, with_content),
        "epoch": fence.epoch if fence is not None else None,
    }


def _attempt(attempt: Attempt, with_content: bool) -> dict[str, Any]:
    return {
        **{name: getattr(attempt, name) for name in ATTEMPT_COLUMNS},
        "said": attempt.end_detail if with_content or not attempt.end_detail else MASKED,
        "evidence": _evidence(attempt.evidence, with_content),
        "reclaim_in_words": word(RECLAIMS, attempt.reclaim),
    }


def _evidence(evidence: Any, with_content: bool) -> Any:
    if with_content or not isinstance(evidence, dict) or "said" not in evidence:
        return evidence
    return {**evidence, "said": MASKED}


def _log(case: Case) -> dict[str, Any]:
    fence = getattr(case.session, "fence", None)
    end = case.log_end
    return {
        "tokens": case.facts.tokens,
        "delivered": case.facts.delivered,
        "delivered_by": fence.evidence if fence is not None else None,
        "marks": {
            name: getattr(fence, f"{name}_seq")
            for name in ("durable", "sent", "taken", "cursor", "acked", "delivered")
        }
        if fence is not None
        else None,
        "closed": end.closed if end is not None else None,
        "digest": end.digest if end is not None else None,
        "digest_over": end.last_seq if end is not None else None,
        "ranges": [
            {"attempt": one.number, "first_seq": one.first_seq, "last_seq": one.last_seq}
            for one in case.attempts
            if one.first_seq is not None
        ],
        "purged_at": case.session.purged_at,
    }


def _content(session: StreamSession) -> dict[str, Any]:
    return {
        "end_user": session.end_user,
        "request": bytes(session.request).decode("utf-8", "replace"),
        "answer": [
            {"attempt": part.attempt, "first_seq": part.first, "last_seq": part.last, "text": part.text}
            for part in parts_of(session)
        ],
    }  # fmt: skip


def _with_flag(one: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(one), "noticed": one.noticed}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case enum.Enum():
            return value.value
    return str(value)
