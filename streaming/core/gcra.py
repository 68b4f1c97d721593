"""Rates per minute, by the generic cell rate algorithm (GCRA).

A bucket is one number: the moment at which it will be empty again. What is taken moves it on by its
share of a minute; nothing is admitted that would put it more than a minute ahead. So a limit of N
lets N pass at once and then one every 60/N seconds, and what is left over is neither counted per
calendar minute nor reset all at once.

All times are whole microseconds; a *level* is how far ahead of now a bucket is. The scripts in
``runtime.limit_scripts`` do the same inside Redis.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60_000_000


def cost(amount: int, per_minute: int) -> int:
    """What ``amount`` takes of a minute; rounded down, so that a whole limit never exceeds it."""
    return int(amount * MINUTE / per_minute)


def admits(level: int, per_minute: int) -> bool:
    """Whether one more fits."""
    return per_minute > 0 and level + cost(1, per_minute) <= MINUTE


@dataclass(frozen=True, slots=True)
class Figure:
    """How a bucket stands: ``level`` as above, of a limit of ``limit`` per minute."""

    limit: int
    level: int

    @property
    def admits(self) -> bool:
        return admits(self.level, self.limit)

    @property
    def remaining(self) -> int:
        """How many more fit now; what was taken afterwards may have put it into debt: then none."""
        return max(0, int((MINUTE - self.level) * self.limit / MINUTE))

    @property
    def wait_seconds(self) -> float:
        """Until one more fits; 0: now. A limit of nothing is looked at again in a minute."""
        if self.limit <= 0:
            return MINUTE / 1e6
        return max(0, self.level + cost(1, self.limit) - MINUTE) / 1e6

    @property
    def reset_seconds(self) -> float:
        """Until nothing of it is used any more."""
        return self.level / 1e6

    @property
    def used(self) -> int:
        """What of the last minute's worth counts against it; more than the limit: debt."""
        return -int(-self.level * self.limit // MINUTE)


def tightest(figures: list[Figure]) -> Figure:
    """Of several that all must admit, the one with the least room; of equals the one that lasts."""
    return min(figures, key=lambda figure: (figure.remaining, -figure.wait_seconds, figure.limit))


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``12ms``, ``1s``, ``1.5s``, ``6m0s``. Rounded up to milliseconds."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    whole = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{whole}s" if minutes else f"{whole}s"
