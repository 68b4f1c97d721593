"""Keeps what the lists of the support desk show of sessions as their rows say.

Triggers note which sessions have changed (``migrations.0003_changes``); ``explain_due`` tells their
stories again and stores what came of it. It takes the notes away in the transaction in which it
stores: killed in the midst, it has done nothing, and the next one does it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from django.db import transaction
from django.utils import timezone

from streaming.core.attribution import Blame, Evidence, attribute, attribute_end
from streaming.core.failures import Cause
from streaming.core.outcome import Outcome
from streaming.core.seams import SeamGrade
from streaming.core.story import Facts, Interruption, Story, tell
from streaming.models import ChangedSession, StreamSession
from streaming.services.facts import facts_of_many
from streaming.services.incident_groups import (
    ADVISORY_CLASS,
    Hit,
    close_quiet,
    delete_emptied,
    group,
)
from streaming.services.sql import rows

logger = logging.getLogger(__name__)

BATCH = 200
MOST_BATCHES = 10
ATTRIBUTION_SECONDS = 10.0
"""A cause that has not come by then will not come."""

OVERDUE_SECONDS = 5.0

_BLAMES = frozenset(blame.value for blame in Blame)
_CAUSES = {cause.value: cause for cause in Cause}
_WORST_GRADE_FIRST = (
    SeamGrade.REFUSED.value, SeamGrade.REGENERATED.value, SeamGrade.TEXT.value,
    SeamGrade.EXACT.value,
)  # fmt: skip

# One session is told by one worker at a time: what another has read of it may be older. Whoever does
# not get it leaves its note where it is.
_CLAIM = """
WITH waiting AS MATERIALIZED (
    SELECT id, session_id FROM streaming_changedsession WHERE at <= statement_timestamp()
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), wanted AS MATERIALIZED (
    SELECT session_id, pg_try_advisory_xact_lock(%(class)s, hashtext(session_id::text)) AS is_ours
    FROM (SELECT DISTINCT session_id FROM waiting) w
)
DELETE FROM streaming_changedsession c USING waiting w JOIN wanted USING (session_id)
WHERE c.id = w.id AND wanted.is_ours
RETURNING c.session_id
"""

# Nobody waits: the journal updates the same rows in an order of its own, and must neither meet us in
# a deadlock nor stand behind us. What is locked is told again. Someone who looks into it has the say
# over the review.
_STORE = """
WITH given AS (SELECT * FROM jsonb_to_recordset(%s::jsonb) AS r(
    id uuid, outcome text, interrupted_at timestamptz, interrupted_seq bigint,
    interrupted_node text, interrupted_cause text, seam_grade text, gap_ms float8,
    noticed boolean, needs_review boolean, incident_id bigint)),
free AS (
    SELECT s.id, s.incident_id AS former FROM streaming_streamsession s JOIN given ON given.id = s.id
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE streaming_streamsession s SET
    outcome = g.outcome, interrupted_at = g.interrupted_at, interrupted_seq = g.interrupted_seq,
    interrupted_node = g.interrupted_node, interrupted_cause = g.interrupted_cause,
    seam_grade = g.seam_grade, gap_ms = g.gap_ms, noticed = g.noticed, incident_id = g.incident_id,
    review = CASE WHEN s.review NOT IN ('', 'needed') THEN s.review
        WHEN g.needs_review THEN 'needed' ELSE '' END
FROM given g JOIN free ON free.id = g.id
WHERE s.id = g.id
RETURNING s.id, free.former
"""


def explain_due(limit: int = BATCH) -> dict[str, int]:
    """Tell the stories that have changed, oldest change first, at most ``limit`` changes.

    ``{"explained": sessions stored, "waiting": sessions that were locked and are told again}``. It
    may run twice at once, and be killed at any time.
    """
    with transaction.atomic():
        arguments = {"limit": limit, "class": ADVISORY_CLASS}
        claimed = {session_id for (session_id,) in rows(_CLAIM, arguments)}
        return explain(claimed) if claimed else {"explained": 0, "waiting": 0}


def explain_all() -> dict[str, Any]:
    """Everything that waits, within reason, and the incidents that are over."""
    explained = 0
    result = {"explained": 0, "waiting": 0}
    for _ in range(MOST_BATCHES):
        result = explain_due()
        explained += result["explained"]
        if not result["explained"]:
            break
    return {
        "explained": explained,
        "closed": close_quiet(),
        "more": int(result["explained"] > 0),
    }


def explain_overdue() -> int:
    """What has waited so long that nobody seems to do it, a bounded number; how many were told.

    For whoever is about to show a list: it is right also when the worker is dead.
    """
    overdue = timezone.now() - timedelta(seconds=OVERDUE_SECONDS)
    if not ChangedSession.objects.filter(at__lt=overdue).exists():
        return 0
    return explain_due()["explained"]


def explain(session_ids: Iterable[UUID]) -> dict[str, int]:
    """Tell the stories of these sessions and store them; to be called in a transaction."""
    now = timezone.now()
    stories: dict[UUID, tuple[Facts, Story]] = {}
    for session_id, facts in facts_of_many(list(session_ids)).items():
        try:
            stories[session_id] = facts, tell(facts)
        except Exception:  # one that nobody can tell must not keep the others from being told
            logger.exception("a story cannot be told", extra={"session_id": str(session_id)})
    stood = {
        pk: (owner_id, incident_id)
        for pk, owner_id, incident_id in StreamSession.objects.filter(pk__in=stories).values_list(
            "pk", "owner_id", "incident_id"
        )
    }
    hits: dict[UUID, Hit] = {}
    early: dict[UUID, int | None] = {}
    for session_id, (_, story) in stories.items():
        owner_id, incident_id = stood.get(session_id, (None, None))
        hit = _hit(session_id, story, owner_id)
        if hit is None:
            continue
        main = story.main
        assert main is not None
        if main.cause not in _BLAMES and hit.at > now - timedelta(seconds=ATTRIBUTION_SECONDS):
            early[session_id] = incident_id  # it would only have to move
        else:
            hits[session_id] = hit
    incidents = group(list(hits.values())) | early
    given = [
        _columns(session_id, facts, story, incidents.get(session_id))
        for session_id, (facts, story) in stories.items()
    ]
    stored = {row[0]: row[1] for row in rows(_STORE, orjson.dumps(given).decode())}
    _regroup(incidents.keys() - stories.keys(), incidents)
    moved = {former for key, former in stored.items() if former not in (None, incidents.get(key))}
    if moved:
        transaction.on_commit(partial(delete_emptied, moved))  # it waits for others: without locks
    locked = stories.keys() - stored.keys()
    _again(locked, now)
    _again(early, now + timedelta(seconds=ATTRIBUTION_SECONDS))
    return {"explained": len(stored), "waiting": len(locked)}


def _again(session_ids: Iterable[UUID], at: datetime) -> None:
    ChangedSession.objects.bulk_create(
        ChangedSession(session_id=session_id, at=at) for session_id in session_ids
    )


def _regroup(session_ids: Iterable[UUID], incidents: Mapping[UUID, int | None]) -> None:
    """Sessions that were told before, and now are in an incident with others."""
    free = StreamSession.objects.select_for_update(skip_locked=True, no_key=True)
    for session_id in free.filter(pk__in=list(session_ids)).values_list("pk", flat=True):
        StreamSession.objects.filter(pk=session_id).update(incident=incidents[session_id])


def _hit(session_id: UUID, story: Story, owner_id: int | None) -> Hit | None:
    main = story.main
    if main is None or main.side == "reader":
        return None
    gateway = main.gateway
    if main.side == "gateway" and not gateway:
        gateway = str(owner_id or "")
    return Hit(
        session_id=session_id,
        at=main.at,
        cause=blame_of(main.cause),
        node=main.node,
        gateway=gateway,
    )


def _columns(
    session_id: UUID, facts: Facts, story: Story, incident_id: int | None
) -> dict[str, Any]:
    """What is stored of a story."""
    main = story.main
    values: dict[str, Any] = {
        "id": session_id,
        "outcome": story.outcome.value if story.outcome else "",
        "interrupted_at": None,
        "interrupted_seq": None,
        "interrupted_node": "",
        "interrupted_cause": "",
        "seam_grade": _worst_grade(story.interruptions),
        "gap_ms": None,
        "noticed": any(one.noticed for one in story.interruptions),
        "needs_review": _needs_review(story) or _was_flagged(facts),
        "incident_id": incident_id,
    }
    if main is not None:
        values |= {
            "interrupted_at": main.at,
            "interrupted_seq": main.seq,
            "interrupted_node": main.node,
            "interrupted_cause": blame_of(main.cause),
            "gap_ms": main.beyond_ms,
        }
    elif story.outcome is not None:  # its reader left
        last = story.absences[-1] if story.absences else None
        values |= {
            "interrupted_at": last.left_at if last else facts.ended_at or facts.created_at,
            "interrupted_seq": last.seq if last else facts.tokens,
            "interrupted_cause": Blame.CLIENT_GONE.value,
        }
    return values


def _needs_review(story: Story) -> bool:
    """A person should look at what was lost, and at what a reader must have seen."""
    if story.outcome is Outcome.LOST:
        return True
    return any(one.noticed and one.until is not None for one in story.interruptions)


def _was_flagged(facts: Facts) -> bool:
    """Content rules have found something that somebody has to look at."""
    return any(
        one.kind == "filtered" and one.data.get("action") in ("flag", "stop")
        for one in facts.happenings
    )


def _worst_grade(interruptions: Iterable[Interruption]) -> str:
    grades = {one.grade for one in interruptions}
    return next((grade for grade in _WORST_GRADE_FIRST if grade in grades), "")


def blame_of(cause: str) -> str:
    """The cause to store. Until it is attributed: what can be said from what the stream itself saw."""
    if cause in _CAUSES:
        judged = attribute(Evidence(seen=_CAUSES[cause]))
        return (judged[0] if judged else Blame.UNKNOWN).value
    return attribute_end(cause)[0].value
