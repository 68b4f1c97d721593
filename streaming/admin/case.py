"""Everything that the page of one session, and the evidence of it, is made from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from streaming.admin.finance import finance
from streaming.admin.picture import Mark, Paces, Picture, picture_of
from streaming.conf import conf
from streaming.core.course import Facts, Story
from streaming.core.story import tell
from streaming.models import Attempt, StreamSession
from streaming.services.facts import facts_of
from streaming.services.sql import rows

MOST_ATTEMPTS = 200
MOST_MARKS = 200

# One look into the index for each mark, so that it costs the same however long the log is. Only the
# checkpoints around each attempt's beginning are named besides: there the line has its corners.
_MARKS = """
SELECT DISTINCT c.created_at, c.last_seq, c.attempt
FROM unnest(%(wanted)s::int8[]) AS wanted(seq)
JOIN LATERAL (
    SELECT created_at, last_seq, attempt FROM streaming_tokencheckpoint
    WHERE session_id = %(session)s AND expires_on = %(expires_on)s AND first_seq <= wanted.seq AND terminal IS NULL
    ORDER BY first_seq DESC LIMIT 1
) c ON true
"""

_END = """
SELECT digest, last_seq, terminal IS NOT NULL FROM streaming_tokencheckpoint
WHERE session_id = %s AND expires_on = %s ORDER BY first_seq DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The last row of the log: the digest over all of it, and whether the log is closed."""

    digest: str
    last_seq: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One session, and all that is stored of its course. ``attempts``: the latest of them."""

    session: StreamSession
    facts: Facts
    story: Story
    attempts: tuple[Attempt, ...]
    marks: tuple[Mark, ...]
    log_end: LogEnd | None
    at: datetime

    @property
    def picture(self) -> Picture:
        settings = conf()
        paces = Paces(settings.keepalive_seconds, settings.recovering_ping_seconds)
        return picture_of(self.facts, self.story, self.marks, now=self.at, paces=paces)


def case_of(session: StreamSession) -> Case:
    """Read all but the content. As many queries for every session, however long."""
    billed = finance().billed([session.pk]).get(session.pk)
    facts = facts_of(session.pk, charged=billed.tokens if billed is not None else None)
    latest = Attempt.objects.filter(session_id=session.pk).order_by("-number")[:MOST_ATTEMPTS]
    attempts = tuple(reversed(latest))
    return Case(
        session=session,
        facts=facts,
        story=tell(facts),
        attempts=attempts,
        marks=_marks(session, facts),
        log_end=_log_end(session),
        at=timezone.now(),
    )


def _marks(session: StreamSession, facts: Facts) -> tuple[Mark, ...]:
    """How the log grew, at up to ``MOST_MARKS`` of its tokens."""
    corners = {
        seq for one in facts.tries if one.first_seq for seq in (one.first_seq, one.first_seq - 1)
    }
    corners = set(sorted(corners)[-MOST_MARKS // 2 :])
    evenly = MOST_MARKS - len(corners)
    most = max([1, facts.tokens, *(one.last_seq or 0 for one in facts.tries)])
    steps = {1 + (most - 1) * n // max(evenly - 1, 1) for n in range(evenly)}
    wanted = sorted(seq for seq in corners | steps if seq > 0)
    found = rows(
        _MARKS, {"wanted": wanted, "session": session.pk, "expires_on": session.expires_on}
    )
    return tuple(sorted((Mark(*row) for row in found), key=lambda mark: mark.seq))


def _log_end(session: StreamSession) -> LogEnd | None:
    found = rows(_END, session.pk, session.expires_on)
    if found:
        digest, last_seq, closed = found[0]
        return LogEnd(bytes(digest).hex(), last_seq, closed)
    if session.log_digest is not None:
        closed = session.ended_at is not None
        return LogEnd(bytes(session.log_digest).hex(), session.completion_tokens + closed, closed)
    return None
