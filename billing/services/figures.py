"""What streaming's tables say of a session: the figures that a settlement rests on."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from billing.core.policy import Progress
from billing.core.waste import Run
from billing.errors import UnknownSession
from streaming.models import Attempt, SessionFence, StreamSession
from streaming.services.sql import rows

CONTENT = ("request", "prompt_token_ids", "log_digest", "evidence")
"""Columns of a session that are large, and none of billing's business."""

# The terminal record has a seq too, and is no token.
_RUNS = """
SELECT attempt, min(first_seq), max(last_seq - (terminal IS NOT NULL)::int)
FROM (SELECT attempt, first_seq, last_seq, terminal,
        count(*) FILTER (WHERE attempt IS DISTINCT FROM former) OVER (ORDER BY first_seq) AS run
    FROM (SELECT attempt, first_seq, last_seq, terminal,
            lag(attempt) OVER (ORDER BY first_seq) AS former
        FROM streaming_tokencheckpoint
        WHERE session_id = %s AND expires_on = %s AND last_seq - (terminal IS NOT NULL)::int >= first_seq) c) c
GROUP BY run, attempt ORDER BY 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A session as it stands. Counts are tokens; ``log``: durable, the terminal record apart."""

    session: StreamSession
    log: int
    sent: int
    delivered: int
    evidence: str
    attempts: list[Attempt]

    @property
    def ended(self) -> bool:
        return self.session.ended_at is not None

    @property
    def progress(self) -> Progress:
        return Progress(self.session.state, self.log, self.sent, self.delivered)

    @property
    def prompt(self) -> int:
        return self.session.prompt_tokens or 0

    @property
    def cached(self) -> int:
        return min(self.session.cached_prompt_tokens or 0, self.prompt)

    @property
    def discarded(self) -> int:
        """Generated, and in no log."""
        return sum(attempt.discarded_tokens for attempt in self.attempts)

    @property
    def regenerated(self) -> int:
        """Generated a second time: they were in the log already."""
        return sum(attempt.repeated_tokens for attempt in self.attempts)

    @property
    def generated(self) -> int:
        return self.log + self.discarded + self.regenerated


def figures_of(session_id: UUID) -> Figures:
    """The figures of one session. Raises ``UnknownSession``."""
    found = StreamSession.objects.select_related("fence", "api_key", "tenant").defer(*CONTENT)
    try:
        session = found.get(pk=session_id)
    except StreamSession.DoesNotExist:
        raise UnknownSession(f"there is no session {session_id}") from None
    attempts = Attempt.objects.filter(session=session_id).order_by("number")
    return figures(session, session.fence, list(attempts))


def figures(session: StreamSession, fence: SessionFence, attempts: list[Attempt]) -> Figures:
    """The figures that these rows come to."""
    log = fence.durable_seq - (session.ended_at is not None)
    return Figures(
        session=session,
        log=log,
        sent=min(fence.sent_seq, log),
        delivered=min(fence.delivered_seq, log),
        evidence=fence.evidence,
        attempts=attempts,
    )


def runs_of(figures: Figures) -> list[Run]:
    """Which attempt produced which tokens: by the log, or by their notes where it was purged."""
    if figures.session.purged_at is None:
        return [Run(*row) for row in rows(_RUNS, figures.session.pk, figures.session.expires_on)]
    return [
        Run(attempt.number, attempt.first_seq, attempt.last_seq)
        for attempt in figures.attempts
        if attempt.first_seq is not None and attempt.last_seq is not None
    ]
