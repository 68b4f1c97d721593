"""The few lines of a ``/metrics`` page that we want, out of some 60 KB of it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """Named samples of one page; a name has several when there are several engines behind it."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.labels: dict[str, list[dict[str, str]]] = defaultdict(list)

    def total(self, *names: str) -> float | None:
        """The sum over all engines and names; None if the page has none of them."""
        values = [value for name in names for value in self.values.get(name, ())]
        return sum(values) if values else None

    def highest(self, name: str) -> float | None:
        """The highest over all engines."""
        return max(self.values.get(name, ()), default=None)


class Reader:
    """Reads samples with certain names, and nothing else of the page."""

    def __init__(self, prefix: str, names: Iterable[str]) -> None:
        wanted = "|".join(map(re.escape, names))
        line = rf"^{re.escape(prefix)}({wanted})(?:\{{(.*)\}})? (\S+)"
        self._samples = re.compile(line.encode(), re.MULTILINE)

    def read(self, page: bytes) -> Page:
        """Raises ``ValueError`` for a value that is no number."""
        found = Page()
        for name, labels, value in self._samples.findall(page):
            number = float(value)
            if math.isfinite(number) and abs(number) < MOST:
                found.values[name.decode()].append(number)
                found.labels[name.decode()].append(
                    dict(_LABEL.findall(labels.decode(errors="replace")))
                )
        return found


MOST = 2.0**53
"""Beyond it a number is not the count that it says it is."""


def count(value: float | None) -> int | None:
    """A figure that counts things; None for what can't be one."""
    return int(value) if value is not None and 0 <= value < MOST else None


def share(value: float | None) -> float | None:
    """A figure between 0 and 1; None for what can't be one."""
    return value if value is not None and 0 <= value <= 1 else None
