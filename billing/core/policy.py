"""How many tokens of a session are billed."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Policy(enum.StrEnum):
    """``DELIVERED`` is the promise; the other is for those whose contract says so."""

    DELIVERED = "delivered"
    INTERRUPT_COMPENSATED = "interrupt_compensated"


INTERRUPTED = frozenset({"suspended", "cancelled", "failed", "abandoned"})
"""States of an answer that did not come to an end that anybody wanted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session has come: its state, and counts of tokens.

    ``log``: durable, the terminal record apart; ``sent``: in events that were written whole;
    ``delivered``: with evidence.
    """

    state: str
    log: int
    sent: int
    delivered: int

    def __post_init__(self) -> None:
        if not 0 <= self.delivered <= self.log:
            raise ValueError(f"{self.delivered} of {self.log} tokens cannot have been delivered")

    @property
    def compensated(self) -> int:
        """The last complete chunk and the token in flight after it; never more than there are.

        What was delivered was sent, even if the mark of what was sent died with its gateway.
        """
        return min(max(self.sent, self.delivered) + 1, self.log)


def billable(policy: Policy, progress: Progress) -> int:
    """The tokens that the session has to be charged for in all, as things stand."""
    if policy is Policy.INTERRUPT_COMPENSATED and progress.state in INTERRUPTED:
        return progress.compensated
    return progress.delivered
