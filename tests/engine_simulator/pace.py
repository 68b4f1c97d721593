"""When each token of a stream is due: an absolute schedule, so that lag can be measured."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

_BURST = 16  # tokens written at once when nothing is due later: cheap, and still fair
_Z_999 = 3.0902  # standard deviations below which 99.9 % of a normal distribution lie


class Pace:
    """The schedule of one stream; token k of a steady pace is due at start + k * interval."""

    def __init__(self, start: float, interval: float = 0.0) -> None:
        self._start = start
        self._interval = interval
        self._taken = 0
        self.due = start  # of the next token

    def is_steady(self) -> bool:
        """Say whether the schedule has intervals at all."""
        return self._interval > 0

    def take(self, limit: int, now: float) -> int:
        """Return how many tokens, at least one, are to be sent now that the next one is due."""
        if not self.is_steady():
            return min(limit, _BURST)
        taken = 1
        self._step()
        while taken < limit and self.due <= now:
            self._step()
            taken += 1
        return taken

    def shift(self, seconds: float) -> None:
        """Move the rest of the schedule into the future."""
        self._start += seconds
        self.due += seconds

    def _step(self) -> None:
        self._taken += 1
        self.due = self._start + self._taken * self._interval


class JitteryPace(Pace):
    """Log-normal intervals with a given median and 99.9th percentile; ``number``: of the stream."""

    def __init__(self, start: float, options: Mapping[str, float], number: int) -> None:
        super().__init__(start, options["median"])
        self._mu = math.log(options["median"])
        self._sigma = (math.log(options["p999"]) - self._mu) / _Z_999
        self._random = random.Random(f"{options.get('seed', 0)}-{number}")

    def _step(self) -> None:
        self.due += self._random.lognormvariate(self._mu, self._sigma)
