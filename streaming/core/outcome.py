"""What became of a session that was interrupted, in one word, and what became of looking into it."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """What an interruption has led to; of several the worst. No outcome: nothing interrupted it."""

    RECOVERED = "recovered"  # the answer went on
    SUSPENDED = "suspended"  # it may still go on
    LOST = "lost"  # the reader did not get the rest
    LEFT = "left"  # its reader hung up and did not come back


INTERRUPTED = (Outcome.RECOVERED, Outcome.SUSPENDED, Outcome.LOST)
"""Something went wrong; who merely left has interrupted nobody but themselves."""


class Review(enum.Enum):
    """Whether a person has looked at it. Empty: nobody need."""

    NEEDED = "needed"
    ASSIGNED = "assigned"
    REVIEWED = "reviewed"
