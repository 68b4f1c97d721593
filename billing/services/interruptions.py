"""What interrupted a session, for the audit log: each once."""

from __future__ import annotations

from dataclasses import dataclass

from billing.core.policy import INTERRUPTED
from billing.models import UsageRecord
from billing.services.figures import Figures, runs_of
from streaming.core.attribution import NO_INTERRUPTIONS
from streaming.models import Attempt, SessionEvent

NOT_ABNORMAL = frozenset(
    {"", "finished", "cancelled", "overtaken", *(cause.value for cause in NO_INTERRUPTIONS)}
)
"""How attempts end that nothing has interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """``position``: the last token before it. ``grade``: how the next attempt was joined on, as far
    as there is one."""

    what: str
    position: int
    node: str
    cause: str
    grade: str


def untold(usage: UsageRecord, figures: Figures) -> list[Interruption]:
    """The interruptions that the audit log has not heard of; ``usage`` then says that it has.

    To be called under the lock of ``usage``, which the caller saves.
    """
    return [*_of_attempts(usage, figures), *_of_session(usage, figures)]


def _of_attempts(usage: UsageRecord, figures: Figures) -> list[Interruption]:
    found: list[Attempt] = []
    for attempt in figures.attempts:
        if attempt.number <= usage.attempts_told:
            continue
        if attempt.ended_at is None and not figures.ended:
            break  # it runs; those after it wait for it
        usage.attempts_told = attempt.number
        if attempt.end_reason not in NOT_ABNORMAL:
            found.append(attempt)
    if not found:
        return []
    ends = {run.attempt: run.last for run in runs_of(figures)}
    grades = {attempt.number: attempt.seam_grade for attempt in figures.attempts}
    return [
        Interruption(
            what=f"attempt {attempt.number}",
            # One without a token of its own broke off where those before it had come to.
            position=max((end for n, end in ends.items() if n <= attempt.number), default=0),
            node=attempt.node_name,
            cause=attempt.cause or attempt.end_reason,
            grade=grades.get(attempt.number + 1, ""),
        )
        for attempt in found
    ]


def _of_session(usage: UsageRecord, figures: Figures) -> list[Interruption]:
    events = SessionEvent.objects.filter(
        session=figures.session.pk, pk__gt=usage.events_told, kind__in=INTERRUPTED
    ).order_by("pk")
    result = []
    for event in events:
        usage.events_told = event.pk
        nodes = [
            attempt.node_name for attempt in figures.attempts if attempt.started_at <= event.at
        ]
        result.append(
            Interruption(
                what=event.kind,
                position=min(event.seq, figures.log),  # the end has a seq of its own
                node=nodes[-1] if nodes else "",
                cause=str(event.data.get("cause", "")),
                grade="",
            )
        )
    return result
