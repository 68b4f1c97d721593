"""What figures prove, and what they don't."""

from __future__ import annotations

import pytest

from streaming.core.reclaim import Look, Verdict, was_restarted


def look(held: int | None, live: int, **facts) -> Verdict:
    return Look(held=held, live_at_least=live, live_at_most=live, **facts).verdict


@pytest.mark.parametrize(
    ("held", "live", "verdict"),
    [
        (0, 0, Verdict.GONE),
        (3, 3, Verdict.GONE),
        (2, 3, Verdict.GONE),  # one of ours has not arrived yet
        (4, 3, Verdict.LEFT),
        (None, 0, Verdict.UNKNOWN),
    ],
)
def test_alone_on_a_node(held, live, verdict):
    assert look(held, live) is verdict


def test_what_just_ended_may_be_on_its_way_out():
    assert look(5, 3, young=2) is Verdict.UNKNOWN
    assert look(6, 3, young=2) is Verdict.LEFT


def test_on_a_shared_node_the_rest_may_be_theirs():
    assert look(9, 3, exclusive=False) is Verdict.UNKNOWN
    assert look(3, 3, exclusive=False) is Verdict.GONE


def test_the_figures_of_a_frozen_node_prove_nothing():
    assert look(0, 0, healthy=False) is Verdict.UNKNOWN
    assert look(9, 0, healthy=False) is Verdict.UNKNOWN


def test_between_what_is_surely_live_and_what_may_be():
    between = Look(held=4, live_at_least=3, live_at_most=5)
    assert between.verdict is Verdict.UNKNOWN
    assert between.surplus == 0


def test_a_counter_that_fell_is_of_another_process():
    assert was_restarted(10, 3)
    assert not was_restarted(10, 10)
    assert not was_restarted(None, 3)
    assert not was_restarted(10, None)
