"""Levels of delivery quality: what a reader gets when not everybody can have everything.

A session has a level: its credential's, or a lower one that its request asked for. ``docs/quality.md``
has the same tables in words.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from streaming.core.connection_health import Band


class Level(enum.Enum):
    """From the one that is served first to the one that gives way first."""

    REALTIME = "realtime"
    STANDARD = "standard"
    ECONOMY = "economy"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _RANKS[self]

    def covers(self, other: Level) -> bool:
        """Whether who has this one may have ``other``: it is the same or a lower one."""
        return self.rank <= other.rank


_RANKS = {level: rank for rank, level in enumerate(Level)}

VARIANT = re.compile(r"[A-Za-z0-9._-]{1,32}")
"""The name of one side of a comparison."""

MAX_COALESCE_MS = 1000

# By level: for a connection that is good, fair, weak. Milliseconds.
_COALESCE_MS: Mapping[Level, tuple[int, int, int]] = {
    Level.REALTIME: (0, 0, 0),
    Level.STANDARD: (0, 30, 60),
    Level.ECONOMY: (150, 250, 400),
}


def coalesce_ms(level: Level, band: Band, wish: int | None = None) -> int:
    """For how long ordinary tokens may be held back, so that they travel together.

    ``wish``: the client's own, 0 to ``MAX_COALESCE_MS``. It counts in place of the table; only
    ``economy``, which is there to cost less, does not get less than the table says.
    """
    usual = _COALESCE_MS[level][band.rank]
    if wish is None:
        return usual
    return max(wish, usual) if level is Level.ECONOMY else wish


class Heartbeats(NamedTuple):
    """Seconds of silence after which readers hear from us: ordinary ones, and those on weak networks."""

    usual: float
    weak: float

    def interval(self, level: Level, band: Band) -> float:
        """``realtime`` is one step ahead of ``standard``, ``economy`` one behind."""
        weak = min(self.usual, self.weak)
        steps = (self.usual, (self.usual + weak) / 2, weak)
        step = band.rank + 1 - level.rank
        return steps[min(max(step, 0), 2)]


def engine_priority(level: Level, *, is_continuation: bool) -> int:
    """Of a request, for engines that schedule by it: lower is sooner, 0 is what others send.

    The continuation of an answer comes before the beginnings of its level, and after those of the
    level above: its reader is waiting in the middle of a sentence.
    """
    return 2 * (level.rank - Level.STANDARD.rank) - is_continuation
