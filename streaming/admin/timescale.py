"""A time axis on which a gap of 38 ms is seen beside an absence of two hours. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

Stretch = tuple[datetime, datetime]

LEAST_WIDTH = 18.0
"""Of a piece, however short it was; less where there are very many."""
LEAST_SHARE = 0.5
"""What all of these may take of the axis together."""
QUIET_SHARE = 0.12
"""A time in which nothing ran gets no more of the axis than this, of what the times of work get."""
SPACING = 74.0
"""Between the labels of two ticks."""

_ROUND = [
    timedelta(seconds=s)
    for s in (
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200,
        1800, 3600, 7200, 14400, 43200, 86400, 604800, 2592000, 31536000,
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Between two neighbouring moments; time passes evenly within it. ``squeezed``: much shorter
    than it was, as nothing ran."""

    start: datetime
    end: datetime
    x1: float
    x2: float
    squeezed: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """``words``: the time since the beginning."""

    x: float
    words: str


class Scale:
    """From times to places between ``left`` and ``right``; never back in time, never outside.

    ``moments`` are those that have to be told apart; ``quiet``: when nothing ran.
    """

    def __init__(
        self, moments: Iterable[datetime], quiet: Sequence[Stretch], left: float, right: float
    ) -> None:
        edges = sorted(set(moments))
        self._left, self._right = left, right
        self._start = edges[0]
        self.pieces: list[Piece] = []
        spans = list(pairwise(edges))
        if spans:
            lengths = [(end - start).total_seconds() for start, end in spans]
            silent = [any(a <= start and end <= b for a, b in quiet) for start, end in spans]
            weights = _weights(lengths, silent)
            least = min(LEAST_WIDTH, LEAST_SHARE * (right - left) / len(spans))
            rest = (right - left) - least * len(spans)
            total = sum(weights)
            x = left
            for (start, end), length, weight in zip(spans, lengths, weights, strict=True):
                wide = least + rest * weight / total
                self.pieces.append(Piece(start, end, x, x + wide, weight < length / 2))
                x += wide
        self._edges = edges

    def x(self, at: datetime) -> float:
        """Where ``at`` is."""
        if not self.pieces or at <= self._start:
            return self._left
        if at >= self.pieces[-1].end:
            return self._right
        piece = self.pieces[bisect_right(self._edges, at) - 1]
        share = (at - piece.start) / (piece.end - piece.start)
        return min(piece.x1 + share * (piece.x2 - piece.x1), self._right)

    def ticks(self, important: Sequence[datetime] = ()) -> list[Tick]:
        """From left to right, none on top of another: first the ends, then what is important."""
        edges = self._edges
        wanted = [edges[0], edges[-1], *important, *self._round_times(), *edges]
        chosen: dict[float, datetime] = {}
        for at in wanted:
            x = self.x(at)
            if all(abs(x - other) >= SPACING for other in chosen):
                chosen[x] = at
        return [Tick(x, since(chosen[x] - self._start)) for x in sorted(chosen)]

    def _round_times(self) -> list[datetime]:
        times = []
        for piece in self.pieces:
            if piece.squeezed or piece.x2 - piece.x1 < 2 * SPACING:
                continue
            fitting = (piece.end - piece.start) * (SPACING * 1.3 / (piece.x2 - piece.x1))
            step = next((step for step in _ROUND if step >= fitting), _ROUND[-1])
            at = self._start + ((piece.start - self._start) // step + 1) * step
            while at < piece.end:
                times.append(at)
                at += step
        return times


def _weights(lengths: list[float], silent: list[bool]) -> list[float]:
    """Of the axis; in seconds where nothing was squeezed."""
    work = sum(length for length, quiet in zip(lengths, silent, strict=True) if not quiet)
    if not work:
        return lengths
    quiet = sum(silent)
    most = work * min(QUIET_SHARE, 0.5 / quiet) if quiet else 0.0
    return [
        min(length, most) if is_quiet else length
        for length, is_quiet in zip(lengths, silent, strict=True)
    ]


def since(value: timedelta) -> str:
    """``0``, ``0.038 s``, ``12.4 s``, ``2:05``, ``1:02:05``, ``3 d 1:02``."""
    thousandths = max(round(value / timedelta(milliseconds=1)), 0)
    seconds, thousandths = divmod(thousandths, 1000)
    part = f".{thousandths:03}".rstrip("0") if thousandths else ""
    if seconds < 60:
        return f"{seconds}{part} s" if seconds or part else "0"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02}{part}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{hours // 24} d {hours % 24}:{minutes:02}"
