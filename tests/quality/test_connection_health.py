"""The formula of ``docs/quality.md``: its bounds, and that worse is never better."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.connection_health import (
    Band,
    LossCount,
    Signs,
    band_of,
    score_of,
    smoothed,
)
from streaming.core.levels import Heartbeats, Level, coalesce_ms, engine_priority

SIGNS = st.builds(
    Signs,
    rtt_ms=st.none() | st.floats(0, 5000),
    jitter_ms=st.none() | st.floats(0, 5000),
    loss=st.none() | st.floats(0, 1),
    queue_seconds=st.none() | st.floats(0, 600),
    returns=st.integers(0, 20),
    bytes_per_second=st.none() | st.floats(0, 1e9),
)
MORE = {"rtt_ms": 1, "jitter_ms": 1, "loss": 1, "queue_seconds": 1, "returns": 1, "bytes_per_second": -1}  # fmt: skip


@given(SIGNS)
def test_bounds(signs):
    assert 0 <= score_of(signs) <= 100


@given(SIGNS, st.sampled_from(sorted(MORE)), st.floats(0, 1000))
def test_a_sign_that_is_worse_is_never_better(signs, name, by):
    before = getattr(signs, name)
    if before is None:
        return
    worse = max(0, before + MORE[name] * (int(by) if name == "returns" else by))
    assert score_of(dataclasses.replace(signs, **{name: worse})) <= score_of(signs)


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_smoothed_score_lies_between(before, now):
    low, high = sorted((before, now))
    assert low - 1e-9 <= smoothed(before, now) <= high + 1e-9


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=20))
def test_loss_is_a_share(counts):
    count, sent, again = LossCount(), 0, 0
    for more_sent, more_again in counts:
        sent += more_sent
        again += min(more_again, more_sent)
        assert 0 <= count.look(sent, again) <= 1


def test_what_nothing_is_known_of_is_well():
    assert score_of(Signs()) == 100


@pytest.mark.parametrize(
    ("signs", "score"),
    [
        (Signs(rtt_ms=300), 65),
        (Signs(rtt_ms=500), 30),
        (Signs(loss=0.055), 65),
        (Signs(queue_seconds=3.0), 20),
        (Signs(queue_seconds=1.0, returns=1), 69),
        (Signs(bytes_per_second=1000), 50),
    ],
)
def test_examples_of_the_document(signs, score):
    assert round(score_of(signs)) == score


def test_a_band_is_left_upwards_with_a_margin():
    assert [band_of(score) for score in (100, 70, 69, 40, 39, 0)] == [
        Band.GOOD, Band.GOOD, Band.FAIR, Band.FAIR, Band.WEAK, Band.WEAK,
    ]  # fmt: skip
    assert band_of(72, Band.FAIR) is Band.FAIR
    assert band_of(75, Band.FAIR) is Band.GOOD
    assert band_of(44, Band.WEAK) is Band.WEAK
    assert band_of(71, Band.WEAK) is Band.FAIR


def test_the_tables_of_the_document():
    table = {level: [coalesce_ms(level, band) for band in Band] for level in Level}
    assert table == {
        Level.REALTIME: [0, 0, 0],
        Level.STANDARD: [0, 30, 60],
        Level.ECONOMY: [150, 250, 400],
    }
    assert coalesce_ms(Level.REALTIME, Band.GOOD, 500) == 500
    assert coalesce_ms(Level.STANDARD, Band.WEAK, 0) == 0
    assert coalesce_ms(Level.ECONOMY, Band.GOOD, 0) == 150
    beats = Heartbeats(8.0, 3.0)
    assert {level: [beats.interval(level, band) for band in Band] for level in Level} == {
        Level.REALTIME: [5.5, 3.0, 3.0],
        Level.STANDARD: [8.0, 5.5, 3.0],
        Level.ECONOMY: [8.0, 8.0, 5.5],
    }


def test_whose_request_an_engine_serves_first():
    order = [(level, is_continuation) for level in Level for is_continuation in (True, False)]
    priorities = [engine_priority(level, is_continuation=again) for level, again in order]
    assert priorities == sorted(priorities)
    assert len(set(priorities)) == 6
    assert engine_priority(Level.STANDARD, is_continuation=False) == 0
