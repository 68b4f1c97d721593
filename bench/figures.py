"""Pure arithmetic on what streams saw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.load import StreamSeen


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that is not below ``percent`` of them; NaN when there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def first_token_ms(streams: Iterable[StreamSeen]) -> list[float]:
    """From the request's last byte to the first token, by stream."""
    return [(seen.arrivals[0] - seen.sent) * 1000 for seen in streams if seen.arrivals]


def lags_ms(
    seen: StreamSeen, asked: float, pace: float, begin: float, end: float
) -> Iterable[float]:
    """How late each token that was due between ``begin`` and ``end`` came.

    Token k (from 0) is due at ``asked + k / pace``, where ``asked`` is when the engine was asked.
    """
    before = 0
    for arrival, count in zip(seen.arrivals, seen.counts, strict=True):
        for token in range(before, count):
            due = asked + token / pace
            if begin <= due < end:
                yield (arrival - due) * 1000
        before = count


def worst_gap_ms(seen: StreamSeen, pace: float, begin: float, end: float) -> float | None:
    """The longest wait for a token beyond the pace, of those that began between the two times."""
    waits = [
        (after - before) * 1000 - 1000 / pace
        for before, after in zip(seen.arrivals, seen.arrivals[1:], strict=False)
        if begin <= before < end
    ]
    return max(waits, default=None)


def rate(streams: Sequence[StreamSeen]) -> tuple[float, float, int]:
    """Tokens a second from the first request to the last token, that time, and the tokens."""
    begin = min(seen.sent for seen in streams)
    end = max(seen.arrivals[-1] for seen in streams if seen.arrivals)
    tokens = sum(seen.counts[-1] for seen in streams if seen.counts)
    return tokens / (end - begin), end - begin, tokens
