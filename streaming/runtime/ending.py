"""How a session's end, or its suspension, is stored: all in one transaction.

A session is suspended because its reader or its gateway process has gone, or by an error that
another try may get over: then its error is stored with it. Who reads it at that moment is told the
error, wherever they are connected (``follower``); who comes back has it continued (``adoption``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from streaming.conf import conf
from streaming.core.attribution import attribute_end
from streaming.core.state import SessionState
from streaming.errors import GatewayError
from streaming.runtime.journal import record_event
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.records import Record, RecordKind, now, session_changed

logger = logging.getLogger(__name__)

SUSPENDED_BY = """
(SELECT e.data -> 'error' FROM streaming_sessionevent e
    WHERE s.state = 'suspended' AND s.error_code <> '' AND e.session_id = s.id AND e.kind = 'suspended'
    ORDER BY e.id DESC LIMIT 1)
"""
"""An expression of SQL: the OpenAI error object that has suspended the session ``s``, if one has."""


@dataclass(slots=True)
class Tally:
    """What a session's attempts have come to, those of earlier owners included."""

    attempts: int = 0
    failovers: int = 0
    discarded: int = 0


async def store_end(session: LiveSession, end: SessionEnd, tally: Tally) -> None:
    """Close the log, or suspend it, as ``end`` says; return when that is durable."""
    log = session.log
    if end.state is not SessionState.COMPLETED:
        blame, evidence = attribute_end(end.cause)
        end = replace(end, cause=blame.value, evidence={**evidence, **end.evidence})
    if log.lost is not None:
        logger.warning("session lost: %s", log.lost)
        return
    if end.state is SessionState.SUSPENDED:
        _suspend(session, end, tally)
    else:
        _close(session, end, tally)
    try:
        await log.flushed()
    except GatewayError as exc:
        logger.warning("the end was not stored: %s", exc)
        return
    logger.info(
        "session %s",
        "suspended" if end.state is SessionState.SUSPENDED else "ended",
        extra={
            "state": end.state.value,
            "cause": end.cause,
            "finish_reason": end.finish_reason,
            "model": session.model,
            "tokens": log.last_seq - log.closed,
            "attempts": tally.attempts,
            "failovers": tally.failovers,
        },
    )


def _close(session: LiveSession, end: SessionEnd, tally: Tally) -> None:
    completion_tokens = session.log.last_seq
    session.move(end.state)
    at = now()
    terminal: dict[str, Any] = {
        "state": end.state.value,
        "finish_reason": end.finish_reason,
        "prompt_tokens": session.prompt_tokens,
        "cached_prompt_tokens": session.cached_prompt_tokens,
    }
    if end.error is not None:
        terminal["error"] = {**end.error, "resumable": False}  # nothing follows this record
    session.log.record(
        session_changed(
            session.id,
            **_what_is_common(session, end, tally),
            finish_reason=end.finish_reason,
            ended_at=at,
        ),
        record_event(session.id, end.state.value, completion_tokens + 1, at, cause=end.cause),
        _announced(session, "session_ended", at),
    )
    session.log.close(terminal, max(tally.attempts, 1))


def _suspend(session: LiveSession, end: SessionEnd, tally: Tally) -> None:
    """Let go of the engine and keep the log: somebody may come back and continue it."""
    session.move(SessionState.SUSPENDED)
    at = now()
    session.error_code = end.error["code"] if end.error else ""
    told = {"cause": end.cause, **({"error": end.error} if end.error else {})}
    session.log.record(
        session_changed(
            session.id,
            **_what_is_common(session, end, tally),
            suspended_at=at,
            resume_until=end.resume_until or at + timedelta(seconds=conf().resume_window),
        ),
        record_event(session.id, "suspended", session.log.last_seq, at, **told),
        _announced(session, "session_suspended", at),
    )


def _what_is_common(session: LiveSession, end: SessionEnd, tally: Tally) -> dict[str, Any]:
    return {
        "state": session.state.value,
        "cause": end.cause,
        "error_code": end.error["code"] if end.error else "",
        "evidence": end.evidence,
        "completion_tokens": session.log.last_seq,
        "prompt_tokens": session.prompt_tokens,
        "cached_prompt_tokens": session.cached_prompt_tokens,
        "discarded_tokens": tally.discarded,
        "failovers": tally.failovers,
        "health": session.lowest_health,
    }


def _announced(session: LiveSession, kind: str, at: Any) -> Record:
    """For billing, in the transaction that ends the session."""
    values = {"session_id": session.id, "kind": kind, "created_at": at, "data": {}}
    return Record(RecordKind.OUTBOX, values)
