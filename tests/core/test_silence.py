"""How long silence is usual: of a stream, of a whole node, and before a first token."""

from __future__ import annotations

import pytest

from streaming.core.first_token import (
    LEAST_SECONDS,
    LONG_PROMPT,
    LONGEST_UNKNOWN,
    MARGIN,
    UNKNOWN_SECONDS,
    FirstToken,
)
from streaming.core.pace import Leniency, Pace


def test_a_steady_stream_is_soon_overdue_and_a_jittery_one_late():
    steady, jittery = Pace(), Pace()
    for number in range(50):
        steady.note(0.05)
        jittery.note(0.05 if number % 5 else 0.3)
    assert steady.longest_usual(0.125) == 0.125
    assert jittery.longest_usual(0.125) > 0.3


def test_one_false_alarm_is_soon_forgotten():
    leniency = Leniency()
    leniency.note(0.2, now=100.0)
    assert 0.1 < leniency.extra(100.0) < 0.2
    assert leniency.extra(100.0 + 10 * Leniency.HALF_LIFE) < 0.001


def test_a_node_that_often_stops_for_a_moment_is_given_that_moment():
    leniency = Leniency()
    for number in range(8):
        leniency.note(0.4, now=100.0 + 5 * number)
    assert leniency.extra(140.0) > 0.4


def test_all_streams_that_stopped_together_are_one_alarm():
    together, once = Leniency(), Leniency()
    once.note(0.2, now=100.0)
    for number in range(50):
        together.note(0.2, now=100.0 + number / 1000)
    assert together.extra(101.0) == once.extra(101.0)


@pytest.mark.parametrize("prompt", [1, LONG_PROMPT - 1])
def test_short_prompts_have_the_usual_time_of_their_node(prompt):
    times = FirstToken()
    assert times.longest_usual(prompt) == UNKNOWN_SECONDS
    for _ in range(10):
        times.note(0.05, prompt)
    assert times.longest_usual(prompt) == LEAST_SECONDS
    assert times.reading(prompt) == 0.0


def test_until_a_long_prompt_has_been_read_it_may_take_a_while():
    times = FirstToken()
    assert times.reading(500) == 5.0
    assert times.reading(100_000) == LONGEST_UNKNOWN


def test_long_prompts_are_given_what_such_have_taken():
    times = FirstToken()
    times.note(6.8, 1046)  # a small CPU
    assert times.reading(1046) == pytest.approx(MARGIN * 6.8)
    assert times.reading(2092) == pytest.approx(2 * MARGIN * 6.8)


def test_a_cached_prompt_says_little_of_the_next_one():
    times = FirstToken()
    times.note(6.8, 1046)
    for _ in range(5):
        times.note(0.06, 1046)
    assert times.reading(1046) > 6.8
    for _ in range(500):
        times.note(0.06, 1046)
    assert times.reading(1046) < 1.0
