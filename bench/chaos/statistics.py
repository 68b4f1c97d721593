"""Pure arithmetic on counts and times: what a rate may be, how times are spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.figures import percentile

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """``hits`` of ``trials``. ``upper``: at 95 % the true rate is not above it (one-sided).

    ``low`` and ``high`` hold it between them at 95 %. All exact (Clopper and Pearson), so they are
    never too narrow, however rare the hits.
    """

    hits: int
    trials: int
    share: float | None
    upper: float
    low: float
    high: float


def rate(hits: int, trials: int) -> Rate:
    """Of no trials nothing is known: ``share`` None, between 0 and 1."""
    low, high = interval(hits, trials)
    return Rate(
        hits=hits,
        trials=trials,
        share=hits / trials if trials else None,
        upper=upper_bound(hits, trials),
        low=low,
        high=high,
    )


def upper_bound(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The rate at which so few hits, or fewer, would be seen in ``1 - confidence`` of all runs.

    Of 0 hits it is about 3 / trials (the "rule of three").
    """
    _check(hits, trials)
    if hits == trials:
        return 1.0
    if hits == 0:
        return -math.expm1(math.log1p(-confidence) / trials)
    return _quantile(confidence, hits + 1, trials - hits)


def lower_bound(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The rate at which so many hits, or more, would be seen in ``1 - confidence`` of all runs."""
    _check(hits, trials)
    if hits == 0:
        return 0.0
    if hits == trials:
        return math.exp(math.log1p(-confidence) / trials)
    return _quantile(1 - confidence, hits, trials - hits + 1)


def interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Between which the rate is: each side is wrong in at most half of ``1 - confidence``."""
    one_side = (1 + confidence) / 2
    return lower_bound(hits, trials, one_side), upper_bound(hits, trials, one_side)


def trials_for(bound: float, confidence: float = CONFIDENCE) -> int:
    """How many trials without any hit it takes to say that the rate is at most ``bound``."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-bound))


def _check(hits: int, trials: int) -> None:
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials")


def _quantile(share: float, a: int, b: int) -> float:
    """Where the incomplete beta function has come to ``share``, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if incomplete_beta(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function: the chance of at least ``a`` hits, each of chance
    ``x``, in ``a + b - 1`` trials.

    By its continued fraction in Lentz's form (Numerical Recipes, 6.4), which takes some
    ``sqrt(max(a, b))`` steps.
    """
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, float(x)))
    logarithm = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    front = math.exp(logarithm)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c = 1.0
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for step in (even, odd):
            d = 1 / _not_zero(1 + step * d, tiny)
            c = _not_zero(1 + step / c, tiny)
            change = d * c
            result *= change
        if abs(change - 1) < 1e-15:
            return result
    raise ArithmeticError(f"no end of the continued fraction for {x}, {a}, {b}")


def _not_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How values are spread; None where there are none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


def spread(values: Iterable[float]) -> Spread:
    """A percentile is the smallest value that is not below so many of them."""
    ordered = sorted(values)
    if not ordered:
        return Spread(count=0, mean=None, p50=None, p90=None, p99=None, max=None)
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def cumulative(values: Iterable[float], points: int = 200) -> list[tuple[float, float]]:
    """(value, share of values not above it) in rising order: the first, the last, and so many between."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return []
    step = max(1, count // points)
    kept = sorted({*range(0, count, step), count - 1})
    return [(ordered[at], (at + 1) / count) for at in kept]


def histogram(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """How many values lie in each of ``[edges[i], edges[i + 1])``; the last one includes its end."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        if not edges[0] <= value <= edges[-1]:
            continue
        at = next(
            (i for i in range(len(counts)) if value < edges[i + 1]),
            len(counts) - 1,
        )
        counts[at] += 1
    return counts
