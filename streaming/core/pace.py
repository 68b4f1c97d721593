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
