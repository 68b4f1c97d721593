"""What an engine's figures prove about requests whose connection has been closed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

OVERDUE_SECONDS = 5.0
"""A request that is seen to run this long after its end is an incident."""

YOUNG_SECONDS = 1.0
"""Requests that ended this recently may be on their way out: they explain a figure above ours."""

SURE_SECONDS = 2.0
"""How long every look must find too much: figures of other processes are a second old."""


class Verdict(enum.Enum):
    GONE = "gone"  # nothing but live requests is left
    LEFT = "left"  # something runs that nobody of us has
    UNKNOWN = "unknown"  # the figures prove neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a node.

    ``held``: requests that the engine says it has, running and waiting; None: it does not say.
    ``live_at_least``, ``live_at_most``: how many of our attempts ran there then; what other
    processes have is known a moment late. ``young``: of ours, how many ended within
    ``YOUNG_SECONDS``. ``exclusive``: no other client uses the node. ``healthy``: its probes are
    answered; the figures of a frozen engine come from another process of it and stand still.
    """

    held: int | None
    live_at_least: int
    live_at_most: int
    young: int = 0
    exclusive: bool = True
    healthy: bool = True

    @property
    def surplus(self) -> int:
        """How many requests it holds that are certainly not live."""
        return max(0, (self.held or 0) - self.live_at_most)

    @property
    def verdict(self) -> Verdict:
        """What it says of the requests that ended before it.

        On a node that others use too, a figure no higher than our own proves as much as anywhere;
        a higher one proves nothing, since the rest may be theirs.
        """
        if self.held is None or not self.healthy:
            return Verdict.UNKNOWN
        if self.held <= self.live_at_least:
            return Verdict.GONE
        if self.exclusive and self.surplus > self.young:
            return Verdict.LEFT
        return Verdict.UNKNOWN


def was_restarted(before: float | None, after: float | None) -> bool:
    """Whether an engine's counter of its work has begun anew: the process that had it is gone."""
    return before is not None and after is not None and after < before
