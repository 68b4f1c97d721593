"""What was not delivered, by attempt."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from billing.core.waste import Run, undelivered


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9))), st.integers(0, 99), st.data())
def test_it_adds_up_and_belongs_to_whoever_made_it(pieces, reach, data):
    ends = [0]
    for _, count in pieces:
        ends.append(ends[-1] + count)
    log = ends[-1]
    delivered = min(reach, log)
    runs = [
        Run(attempt, first + 1, last)
        for (attempt, _), (first, last) in zip(pieces, pairwise(ends), strict=True)
    ]
    owners = {token: run.attempt for run in runs for token in range(run.first, run.last + 1)}
    expected: dict[int, int] = {}
    for token in range(delivered + 1, log + 1):
        expected[owners[token]] = expected.get(owners[token], 0) + 1
    assert undelivered(runs, delivered, log) == expected
    kept = data.draw(st.lists(st.sampled_from(runs), unique=True) if runs else st.just([]))
    assert sum(undelivered(kept, delivered, log).values()) == log - delivered
