"""How the connection to a reader does, and what that means for what is sent on it.

Looked at once a second at most: to ask the kernel costs as much as a token. What comes of it is
written in ``docs/quality.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from streaming import metrics
from streaming.conf import conf
from streaming.core.connection_health import (
    Band,
    LossCount,
    Signs,
    band_of,
    score_of,
    smoothed,
)
from streaming.core.levels import Heartbeats, Level, coalesce_ms
from streaming.runtime.reader import Reader, Socket

LOOK_SECONDS = 1.0
ROUND_TRIPS = 5
"""Of those that the client's acknowledgements tell, the shortest counts: it need not answer at once."""


@dataclass(slots=True)
class Wishes:
    """What a client asked for, or said of its network; None: nothing."""

    heartbeat: float | None = None
    """Seconds."""
    coalesce: int | None = None
    """Milliseconds."""
    rtt_ms: float | None = None
    bytes_per_second: float | None = None


@dataclass(slots=True, eq=False)
class ConnectionQuality:
    """Of one connection, whatever is followed on it. ``level``: the best of what is followed."""

    socket: Socket | None
    level: Level = Level.STANDARD
    wishes: Wishes = field(default_factory=Wishes)
    band: Band = Band.GOOD
    lowest: int | None = None
    """The lowest score so far; None: it was not looked at."""
    _score: float | None = None
    _loss: LossCount = field(default_factory=LossCount)
    _looked_at: float = float("-inf")
    _round_trips: deque[float] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))

    def __repr__(self) -> str:
        return f"<ConnectionQuality {self.score} {self.band.value} {self.level.value}>"

    @property
    def score(self) -> int | None:
        return None if self._score is None else round(self._score)

    @property
    def heartbeat(self) -> float:
        """Seconds of silence after which its reader hears from us."""
        if self.wishes.heartbeat is not None:
            return self.wishes.heartbeat
        limits = conf()
        beats = Heartbeats(limits.keepalive_seconds, limits.keepalive_weak_seconds)
        return beats.interval(self.level, self.band)

    def coalesce_ms(self, level: Level) -> int:
        """For how long ordinary tokens of a session of ``level`` may be held back."""
        return coalesce_ms(level, self.band, self.wishes.coalesce)

    def told(self) -> dict[str, Any]:
        """As the event ``quality`` has it."""
        return {
            "score": 100 if self.score is None else self.score,
            "heartbeat_seconds": self.heartbeat,
            "coalesce_ms": self.coalesce_ms(self.level),
            "transport_hint": self.band.transport_hint,
        }

    def note_round_trip(self, seconds: float) -> None:
        """The client has acknowledged something ``seconds`` after it was sent."""
        self._round_trips.append(seconds)

    def is_due(self, now: float) -> bool:
        """Whether it is time for another look."""
        return now - self._looked_at >= LOOK_SECONDS

    def look(self, readers: Iterable[Reader], now: float) -> bool:
        """Look again, if the last look is a second old; whether it is in another band now."""
        if not self.is_due(now):
            return False
        self._looked_at = now
        readers = list(readers)
        signs = self._signs(readers, now)
        self._score = smoothed(self._score, score_of(signs))
        self.lowest = _lower(self.lowest, round(self._score))
        for reader in readers:
            self.stands_for(reader)
        metrics.reader_lag(self.level.value, signs.queue_seconds or 0.0)
        before, self.band = self.band, band_of(self._score, self.band)
        return self.band is not before

    def stands_for(self, reader: Reader) -> None:
        """``reader`` reads on this connection, as it is now."""
        if self.score is not None:
            reader.health = _lower(reader.health, self.score)

    def closed(self) -> None:
        """The connection is over."""
        if self.lowest is not None:
            metrics.connection_health(self.level.value, self.lowest)

    def _signs(self, readers: list[Reader], now: float) -> Signs:
        info = None if self.socket is None else self.socket.tcp_info()
        round_trips = [
            *([info.rtt_us / 1000] if info is not None else []),
            *([self.wishes.rtt_ms] if self.wishes.rtt_ms is not None else []),
            *([min(self._round_trips) * 1000] if len(self._round_trips) == ROUND_TRIPS else []),
        ]
        return Signs(
            rtt_ms=max(round_trips, default=None),
            jitter_ms=None if info is None else info.rttvar_us / 1000,
            loss=None
            if info is None
            else self._loss.look(info.segments_out, info.retransmitted_segments),
            queue_seconds=max((reader.queue_age(now) for reader in readers), default=0.0),
            returns=max((reader.returns for reader in readers), default=0),
            bytes_per_second=self.wishes.bytes_per_second,
        )


def _lower(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def variant_label(variant: str) -> str:
    """What metrics call a variant: clients make names up, so only those in ``VARIANTS`` are told apart."""
    if not variant:
        return "none"
    known = {name.strip() for name in conf().variants.split(",")}
    return variant if variant in known else "other"
