"""The rules of buckets, in numbers."""

from __future__ import annotations

import pytest

from streaming.core.gcra import MINUTE, Figure, admits, cost, duration, tightest


@pytest.mark.parametrize("limit", [1, 7, 60, 61, 1000, 999_983])
def test_a_whole_limit_passes_at_once_and_no_more(limit: int) -> None:
    level = 0
    for used in range(min(limit, 5000)):
        assert Figure(limit, level).remaining == limit - used
        assert Figure(limit, level).used == used
        level += cost(1, limit)
    if limit <= 5000:
        assert not admits(level, limit)
        assert Figure(limit, level).wait_seconds == pytest.approx(60 / limit, abs=1e-4)


def test_debt_is_waited_off() -> None:
    figure = Figure(100, cost(250, 100))
    assert (figure.remaining, figure.used) == (0, 250)
    assert figure.wait_seconds == pytest.approx(90.6)
    assert figure.reset_seconds == pytest.approx(150)


def test_a_limit_of_nothing_admits_nothing() -> None:
    assert not admits(0, 0)
    assert Figure(0, 0).wait_seconds == 60


def test_the_tightest_is_the_one_with_the_least_room() -> None:
    wide, tight = Figure(1000, MINUTE // 2), Figure(60, MINUTE // 2)
    assert tightest([wide, tight]) is tight


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (61.25, "1m1.25s")],
)  # fmt: skip
def test_durations_are_written_as_openai_does(seconds: float, words: str) -> None:
    assert duration(seconds) == words
