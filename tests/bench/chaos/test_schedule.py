"""Schedules of faults: fixed by their seed, and never so that nobody is left."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.chaos.schedule import KINDS, LASTING, TAKES_AWAY, Planned, Rules, course, plan

NODES = ("a", "b", "c")
GATEWAYS = ("one", "two")
TARGETS = {
    **{kind: NODES for kind in KINDS if kind.startswith("node_")},
    "gateway_kill": GATEWAYS,
    "redis_restart": ("redis",),
    "postgres_restart": ("postgres",),
}
RATES = st.dictionaries(st.sampled_from(sorted(TARGETS)), st.floats(0.1, 40), min_size=1)
SEEDS = st.integers(0, 2**32)


def rules(rates, seconds=120.0, **others) -> Rules:
    return Rules(seconds=seconds, per_minute=rates, targets=TARGETS, **others)


def at_once(plan: list[Planned], targets: tuple[str, ...], recovery: float) -> int:
    """The most of ``targets`` that are away at one moment."""
    away = [f for f in plan if f.target in targets and f.kind in TAKES_AWAY]
    return max(
        (len({f.target for f in away if f.at <= one.at < f.until + recovery}) for one in away),
        default=0,
    )


@given(seed=SEEDS, rates=RATES)
@settings(max_examples=60, deadline=None)
def test_the_same_seed_gives_the_same_schedule(seed, rates):
    assert plan(seed, rules(rates)) == plan(seed, rules(dict(reversed(rates.items()))))


@given(seed=SEEDS, rates=RATES, recovery=st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_somebody_is_always_left(seed, rates, recovery):
    planned = plan(seed, rules(rates, recovery=recovery))
    assert at_once(planned, NODES, recovery) < len(NODES)
    assert at_once(planned, GATEWAYS, recovery) < len(GATEWAYS)


@given(seed=SEEDS, rates=RATES)
@settings(max_examples=60, deadline=None)
def test_nobody_is_hit_twice_at_once(seed, rates):
    planned = plan(seed, rules(rates))
    assert planned == sorted(planned, key=lambda fault: (fault.at, fault.kind))
    for target in {fault.target for fault in planned}:
        mine = [fault for fault in planned if fault.target == target]
        for before, after in itertools.pairwise(mine):
            assert before.until + rules(rates).recovery <= after.at
    for fault in planned:
        least, most = LASTING[fault.kind]
        assert least <= fault.seconds <= most
        assert 0 <= fault.at < 120
        assert fault.target in TARGETS[fault.kind]


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_each_kind_happens_in_a_short_run_that_wants_it(seed):
    planned = plan(seed, rules(dict.fromkeys(TARGETS, 0.01), 20.0, each_once=True, recovery=1.0))
    assert {fault.kind for fault in planned} == set(TARGETS)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="too short"):
        plan(1, rules(dict.fromkeys(TARGETS, 1.0), 0.5, each_once=True))


def test_the_last_node_goes_only_if_that_is_asked_for():
    rates = {"node_kill": 60.0}
    planned = plan(3, rules(rates, all_at_once=True))
    assert at_once(planned, NODES, 0) == len(NODES)


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_rate_is_kept_on_average(seed):
    """Of a kind that disturbs nobody else: 6 a minute for an hour, give or take five deviations."""
    planned = plan(seed, rules({"redis_restart": 6.0}, 3600.0, recovery=0.0))
    assert 265 < len(planned) < 455


def test_regular_faults_come_once_in_each_period():
    planned = plan(5, rules({"node_kill": 6.0}, 120.0, regular=True, recovery=1.0))
    assert len(planned) == 12
    assert max(b.at - a.at for a, b in itertools.pairwise(planned)) < 20 + 5


def test_another_rate_of_one_kind_leaves_the_others_where_they_were():
    few = plan(7, rules({"node_reset": 1.0, "redis_restart": 3.0}))
    many = plan(7, rules({"node_reset": 20.0, "redis_restart": 3.0}))
    redis = [[f for f in planned if f.kind == "redis_restart"] for planned in (few, many)]
    assert redis[0] == redis[1] != []


@given(seed=SEEDS, index=st.integers(0, 10**6), tokens=st.integers(1, 500))
def test_a_reader_behaves_the_same_for_the_same_seed(seed, index, tokens):
    mine = course(seed, index, tokens, cut=0.5, leave=0.3)
    assert mine == course(seed, index, tokens, cut=0.5, leave=0.3)
    assert mine.leaves is None or not mine.cuts
    places = [cut.after for cut in mine.cuts]
    assert places == sorted(set(places))
    assert all(0 <= place < tokens for place in places)


def test_as_many_readers_as_asked_for_are_cut_or_leave():
    courses = [course(1, index, 40, cut=0.25, leave=0.1) for index in range(4000)]
    assert 300 < sum(one.leaves is not None for one in courses) < 500
    assert 750 < sum(bool(one.cuts) for one in courses) < 1050
