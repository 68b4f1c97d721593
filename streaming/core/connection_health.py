"""How well a connection to a reader does: a score from 0 to 100, by the formula of ``docs/quality.md``.

Each sign takes points away: none up to one value, all of its points from another one on, and in
proportion between. What is not known takes none. The score is smoothed, and bands have a margin, so
that what is driven by it changes seldom.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Band(enum.Enum):
    """What a score amounts to; ``floor``: the lowest score of the band."""

    GOOD = "good"
    FAIR = "fair"
    WEAK = "weak"

    @property
    def rank(self) -> int:
        """0 is the best."""
        return _RANKS[self]

    @property
    def floor(self) -> int:
        return _FLOORS[self]

    @property
    def transport_hint(self) -> str:
        """What suits it: few bytes and no state in proxies matter more the weaker it is."""
        return _TRANSPORTS[self]


_RANKS = {band: rank for rank, band in enumerate(Band)}
_FLOORS = {Band.GOOD: 70, Band.FAIR: 40, Band.WEAK: 0}
_TRANSPORTS = {Band.GOOD: "websocket", Band.FAIR: "sse", Band.WEAK: "longpoll"}
MARGIN = 5
"""Points by which a score must exceed a band's floor before it counts as better again."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of a connection; None: not known."""

    rtt_ms: float | None = None
    """Round trip: the kernel's, or the client's where that is longer (a proxy hides the rest)."""
    jitter_ms: float | None = None
    """How much it varies."""
    loss: float | None = None
    """Share of segments that had to be sent again, lately: 0 to 1."""
    queue_seconds: float | None = None
    """How long the oldest of what was written has not been taken by the peer."""
    returns: int = 0
    """How often a reader of this session has come back lately."""
    bytes_per_second: float | None = None
    """As the client has measured."""


class _Penalty(NamedTuple):
    points: float
    none_at: float
    all_at: float

    def of(self, value: float | None) -> float:
        if value is None:
            return 0.0
        share = (value - self.none_at) / (self.all_at - self.none_at)
        return self.points * min(max(share, 0.0), 1.0)


RTT = _Penalty(70, none_at=100, all_at=500)
JITTER = _Penalty(20, none_at=50, all_at=300)
LOSS = _Penalty(70, none_at=0.01, all_at=0.10)
QUEUE = _Penalty(80, none_at=0.5, all_at=3.0)
RETURNS = _Penalty(60, none_at=0, all_at=4)
BANDWIDTH = _Penalty(50, none_at=-16_000, all_at=-1_000)  # less is worse


def score_of(signs: Signs) -> float:
    """0 to 100, of this moment. Never better for a sign that is worse."""
    bandwidth = signs.bytes_per_second
    taken = (
        RTT.of(signs.rtt_ms)
        + JITTER.of(signs.jitter_ms)
        + LOSS.of(signs.loss)
        + QUEUE.of(signs.queue_seconds)
        + RETURNS.of(signs.returns)
        + BANDWIDTH.of(None if bandwidth is None else -bandwidth)
    )
    return max(0.0, 100.0 - taken)


WORSE_WEIGHT, BETTER_WEIGHT = 0.5, 0.2
"""Of a new score against the smoothed one. What has become worse counts sooner than what is better:
a network that was weak a moment ago is likely to be so again."""


def smoothed(before: float | None, now: float) -> float:
    """The score as it counts. ``before``: None at the first look."""
    if before is None:
        return now
    weight = WORSE_WEIGHT if now < before else BETTER_WEIGHT
    return before + weight * (now - before)


def band_of(score: float, before: Band = Band.GOOD) -> Band:
    """The band of a score. ``before``: the one so far, which is left upwards only with a margin."""
    for band in Band:
        margin = MARGIN if band.rank < before.rank else 0
        if score >= band.floor + margin:
            return band
    return Band.WEAK


FORGETTING = 0.8
FEWEST_SEGMENTS = 20.0


@dataclass(slots=True)
class LossCount:
    """The share of segments that are lost lately, from counters over the life of a connection."""

    _sent: float = 0.0
    _again: float = 0.0
    _seen_sent: int = 0
    _seen_again: int = 0

    def look(self, sent: int, again: int) -> float:
        """``sent``: segments so far, of them ``again`` a second time. Asked about once a second.

        Of very few segments one says little: they count as ``FEWEST_SEGMENTS``.
        """
        self._sent = self._sent * FORGETTING + max(0, sent - self._seen_sent)
        self._again = self._again * FORGETTING + max(0, again - self._seen_again)
        self._seen_sent, self._seen_again = sent, again
        return min(1.0, self._again / max(self._sent, FEWEST_SEGMENTS))
