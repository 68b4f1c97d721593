"""How long silence is still usual."""

from __future__ import annotations


class Pace:
    """Mean and mean deviation of the times between events, as TCP estimates a round trip.

    Source: RFC 6298, with its gains of 1/8 and 1/4; a wider margin, since token times have long
    tails. Times are seconds.
    """

    __slots__ = ("deviation", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        self.deviation = 0.0

    def __repr__(self) -> str:
        return f"<Pace {self.mean:.3f} s ± {self.deviation:.3f}>"

    @property
    def is_known(self) -> bool:
        return self.mean > 0

    def note(self, gap: float) -> None:
        """An event has come ``gap`` seconds after the one before it."""
        if self.mean:
            error = gap - self.mean
            self.deviation += (abs(error) - self.deviation) / 4
            self.mean += error / 8
        else:
            self.mean = gap
            self.deviation = gap / 2

    def longest_usual(self, floor: float) -> float:
        """Silence beyond this is worth a look; never less than ``floor``."""
        return max(floor, self.mean + 6 * self.deviation)


class Leniency:
    """How much longer than ``Pace`` says a node may be silent: what false alarms have taught.

    A node may stop for all of its streams at once and be well: a long prompt of somebody else, a
    collection of garbage. Where that happens often the next alarm is to come later; what happened
    once is soon forgotten. Times are seconds.
    """

    __slots__ = ("_at", "_extra")

    HALF_LIFE = 30.0
    GAIN = 0.5
    AT_ONCE = 0.5
    """False alarms closer together are one: all streams of a node stop together."""

    def __init__(self) -> None:
        self._extra = 0.0
        self._at = float("-inf")

    def __repr__(self) -> str:
        return f"<Leniency {self._extra:.3f} s at {self._at:.1f}>"

    def extra(self, now: float) -> float:
        """Seconds beyond the floor that are usual by now."""
        return self._extra * 0.5 ** ((now - self._at) / self.HALF_LIFE) if self._extra else 0.0

    def note(self, beyond: float, now: float) -> None:
        """A silence of ``beyond`` seconds more than the floor has ended by itself."""
        if now - self._at < self.AT_ONCE:
            return
        extra = self.extra(now)
        self._extra = extra + self.GAIN * max(0.0, 1.25 * beyond - extra)
        self._at = now
