"""The circuit of a node, and how a node that returns is readmitted."""

from __future__ import annotations

import pytest

from streaming.fleet.breaker import LONGEST_PAUSE, TRIAL_SECONDS, Breaker, Circuit, Readmission


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(failures=3, pause=1.0)
    for _ in range(3):
        breaker.failed(now)
    assert breaker.state is Circuit.OPEN
    return breaker


def test_it_opens_after_so_many_failures_close_together():
    breaker = Breaker(failures=3, pause=1.0)
    for now in (0.0, 6.0, 12.0, 18.0):  # never three within ten seconds
        breaker.failed(now)
        assert breaker.state is Circuit.CLOSED
    breaker.failed(18.5)
    assert breaker.state is Circuit.OPEN


@pytest.mark.parametrize(("successes", "state"), [(3, Circuit.OPEN), (4, Circuit.CLOSED)])
def test_it_opens_only_if_half_of_the_attempts_fail(successes, state):
    breaker = Breaker(failures=3, pause=1.0)
    for _ in range(successes):
        breaker.succeeded(0.0)
    for _ in range(3):
        breaker.failed(1.0)
    assert breaker.state is state


def test_one_attempt_tries_after_the_pause():
    breaker = opened()
    assert not breaker.takes_trial(0.9)
    assert breaker.takes_trial(1.0)
    breaker.began(1.0)
    assert breaker.state is Circuit.HALF_OPEN
    assert not breaker.takes_trial(1.1)
    breaker.succeeded(1.2)
    assert breaker.state is Circuit.CLOSED


def test_each_failed_trial_doubles_the_pause_up_to_a_limit_and_a_good_one_resets_it():
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(7):
        pause = next(step for step in range(1, 100) if breaker.takes_trial(now + step))
        pauses.append(pause)
        now += pause
        breaker.began(now)
        breaker.failed(now)
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]
    now += LONGEST_PAUSE
    breaker.began(now)
    breaker.succeeded(now)
    for _ in range(3):
        breaker.failed(now)
    assert breaker.takes_trial(now + 1.0)


def test_a_trial_that_says_nothing_or_is_lost_lets_another_try():
    breaker = opened()
    breaker.began(1.0)
    breaker.undecided(1.5)  # the node was busy
    assert breaker.takes_trial(1.5)
    breaker.began(1.5)
    assert not breaker.takes_trial(1.5 + TRIAL_SECONDS / 2)
    assert breaker.takes_trial(1.5 + TRIAL_SECONDS)  # its client left before the first token


def test_streams_from_before_it_opened_change_nothing():
    breaker = opened()
    breaker.failed(0.9)
    breaker.succeeded(0.95)
    assert breaker.state is Circuit.OPEN
    assert breaker.takes_trial(1.0)


def test_an_attempt_that_had_no_other_node_is_a_trial_too():
    breaker = opened()
    breaker.began(0.1)
    breaker.succeeded(0.2)
    assert breaker.state is Circuit.CLOSED


def test_it_hears_what_other_processes_have_found_out():
    breaker = Breaker(failures=3, pause=1.0)
    breaker.hear(Circuit.OPEN, 0.0)
    assert breaker.state is Circuit.OPEN
    assert breaker.takes_trial(1.0)
    breaker.hear(Circuit.CLOSED, 0.5)
    assert breaker.state is Circuit.CLOSED


def test_a_node_that_was_gone_is_tried_as_soon_as_it_is_back():
    breaker = opened()
    breaker.began(1.0)
    breaker.failed(1.0)
    breaker.returned(1.1)
    assert breaker.takes_trial(1.1)
    breaker = Breaker()
    breaker.returned(0.0)
    assert breaker.state is Circuit.CLOSED


def test_a_returning_node_gets_more_with_each_second_and_success():
    readmission = Readmission()
    assert readmission.share(0.0) == 1.0
    readmission.begin(100.0)
    shares = [readmission.share(100.0 + second) for second in range(12)]
    assert shares[0] == pytest.approx(0.1)
    assert shares == sorted(shares)
    assert shares[10] == 1.0
    readmission.begin(200.0)
    slow = readmission.share(201.0)
    for _ in range(5):
        readmission.succeeded()
    assert readmission.share(201.0) > slow
    for _ in range(20):
        readmission.succeeded()
    assert readmission.share(201.0) == 1.0
