"""Bounds of rates against their definition, and how times are spread."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chaos.statistics import (
    cumulative,
    histogram,
    incomplete_beta,
    interval,
    lower_bound,
    rate,
    spread,
    trials_for,
    upper_bound,
)

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def at_most(hits: int, trials: int, chance: float) -> float:
    """The chance of at most so many hits: the binomial distribution, added up."""
    return math.fsum(
        math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits + 1)
    )


@given(counts)
def test_at_the_upper_bound_so_few_hits_are_seen_once_in_twenty(count):
    hits, trials = count
    bound = upper_bound(hits, trials)
    if hits == trials:
        assert bound == 1.0
    else:
        assert at_most(hits, trials, bound) == pytest.approx(0.05, rel=1e-6)


@given(counts)
def test_the_lower_bound_is_the_upper_one_of_the_misses(count):
    hits, trials = count
    assert lower_bound(hits, trials) == pytest.approx(1 - upper_bound(trials - hits, trials))


@given(counts)
def test_the_interval_holds_the_share_and_is_wider_than_one_side(count):
    hits, trials = count
    low, high = interval(hits, trials)
    assert low <= hits / trials <= high
    assert high >= upper_bound(hits, trials)


@given(counts)
def test_more_trials_make_the_bound_narrower_and_more_hits_wider(count):
    hits, trials = count
    assert upper_bound(hits, trials + 1) <= upper_bound(hits, trials)
    assert upper_bound(min(hits + 1, trials), trials) >= upper_bound(hits, trials)


@given(st.integers(30, 1_000_000))
def test_rule_of_three(trials):
    bound = upper_bound(0, trials)
    assert bound <= 3 / trials
    assert bound == pytest.approx(3 / trials, rel=0.06)


def test_known_values():
    # Clopper and Pearson (1934): 0 of 10, 5 of 10, 95 % in both directions.
    assert interval(0, 10) == pytest.approx((0.0, 0.30850), abs=1e-5)
    assert interval(5, 10) == pytest.approx((0.18709, 0.81291), abs=1e-5)
    assert upper_bound(0, 300_000) < 1e-5
    assert trials_for(1e-5) == 299_572
    assert upper_bound(0, 299_572) <= 1e-5 < upper_bound(0, 299_571)
    assert upper_bound(1, 300_000) == pytest.approx(4.744 / 300_000, rel=1e-3)  # Poisson's


def test_nothing_is_known_of_no_trials():
    none = rate(0, 0)
    assert (none.share, none.upper, none.low, none.high) == (None, 1.0, 0.0, 1.0)


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3)])
def test_impossible_counts(hits, trials):
    with pytest.raises(ValueError, match="hits of"):
        upper_bound(hits, trials)


@given(st.floats(0, 1), st.integers(1, 60), st.integers(1, 60))
def test_incomplete_beta_is_the_chance_of_so_many_hits(x, a, b):
    expected = 1 - at_most(a - 1, a + b - 1, x)
    assert incomplete_beta(x, a, b) == pytest.approx(expected, abs=1e-9)


values = st.lists(st.floats(0, 1e6), min_size=1)


@given(values)
def test_a_percentile_is_not_below_so_many(some):
    told = spread(some)
    assert told.count == len(some)
    assert told.max == max(some)
    assert told.mean == pytest.approx(sum(some) / len(some))
    for percentile, share in ((told.p50, 0.5), (told.p90, 0.9), (told.p99, 0.99)):
        assert percentile in some
        assert sum(value <= percentile for value in some) >= share * len(some)
        assert sum(value < percentile for value in some) < share * len(some)


def test_spread_of_nothing():
    assert spread([]).p50 is None
    assert cumulative([]) == []


@given(values, st.integers(1, 50))
def test_curve_rises_from_the_first_value_to_all_of_them(some, points):
    curve = cumulative(some, points)
    assert curve == sorted(curve)
    assert curve[0][0] == min(some)
    assert curve[-1] == (max(some), 1.0)
    assert all(share <= sum(v <= value for v in some) / len(some) for value, share in curve)


@given(st.lists(st.floats(0, 10)))
def test_histogram_has_every_value_once(some):
    assert sum(histogram(some, [0, 1, 5, 10])) == len(some)


def test_histogram_edges():
    assert histogram([0, 0.5, 1, 4.9, 5, 10, 11, -1], [0, 1, 5, 10]) == [2, 2, 2]
