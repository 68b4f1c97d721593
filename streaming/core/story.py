"""The course of a session, told from what is stored: what interrupted it, and what that led to.

Pure: ``services.explaining`` stores the result for the lists, the session's page draws it. Rows of
other versions, with kinds and causes that this one does not know, are told as far as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streaming.core.absences import absences_of, interruption_of
from streaming.core.course import (
    NOTICED_MS,
    Absence,
    Facts,
    Happening,
    Interruption,
    Story,
    Try,
)
from streaming.core.interruptions import interruptions_of
from streaming.core.outcome import Outcome
from streaming.core.wording import sentence_of

__all__ = [
    "NOTICED_MS", "Absence", "Facts", "Happening", "Interruption", "Story", "Try", "tell",
]  # fmt: skip

_WORST_FIRST = (Outcome.LOST, Outcome.SUSPENDED, Outcome.RECOVERED, Outcome.LEFT)
_MAY_GO_ON = frozenset({"created", "streaming", "recovering", "suspended"})


def tell(facts: Facts) -> Story:
    """What happened to a session."""
    course = sorted(facts.happenings, key=lambda one: one.at)
    absences = absences_of(facts, course)
    of_machines = interruptions_of(facts, course, absences)
    gateways = [one for one in of_machines if one.side == "gateway"]
    readers = [interruption_of(absence, facts, gateways) for absence in absences]
    found = sorted(
        [*of_machines, *(one for one in readers if one is not None)],
        key=lambda one: (one.seq, one.at),
    )
    outcome = _outcome(facts, found, absences)
    untold = Story(outcome=outcome, interruptions=tuple(found), absences=absences, sentence="")
    return replace(untold, sentence=sentence_of(facts, outcome, untold.main, found, absences))


def _outcome(
    facts: Facts, interruptions: Sequence[Interruption], absences: Sequence[Absence]
) -> Outcome | None:
    """Of everything that interrupted it, the worst."""
    led_to = {_led_to(one, facts, absences) for one in interruptions}
    if _was_cut_off(facts, absences):
        led_to.add(Outcome.LOST)
    if absences and absences[-1].back_at is None and absences[-1].is_clean:
        led_to.add(Outcome.LEFT)
    return next((outcome for outcome in _WORST_FIRST if outcome in led_to), None)


def _led_to(one: Interruption, facts: Facts, absences: Sequence[Absence]) -> Outcome:
    if one.until is not None:
        return Outcome.RECOVERED
    if facts.state in _MAY_GO_ON:
        return Outcome.SUSPENDED
    if one.side == "reader" and facts.delivered >= facts.tokens and facts.state == "completed":
        return Outcome.RECOVERED  # it vanished with the whole answer in hand
    return Outcome.LOST


def _was_cut_off(facts: Facts, absences: Sequence[Absence]) -> bool:
    """Its gateway died, the answer went on, and its reader never learnt of it."""
    last = absences[-1] if absences else None
    return (
        last is not None
        and last.how == "gateway_gone"
        and last.back_at is None
        and facts.ended_at is not None
        and facts.delivered < facts.tokens
    )
