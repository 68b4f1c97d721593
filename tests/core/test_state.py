"""The moves between the states of a session."""

from __future__ import annotations

import itertools

import pytest

from streaming.core.state import IllegalMove, SessionState, check_move

ENDS = {state for state in SessionState if state.is_end}
LIVE = set(SessionState) - ENDS


def test_five_states_are_ends():
    assert {state.value for state in ENDS} == {
        "completed", "stopped", "cancelled", "failed", "abandoned",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("end", "to"), list(itertools.product(sorted(ENDS, key=str), SessionState))
)
def test_nothing_follows_an_end(end, to):
    with pytest.raises(IllegalMove, match=f"{end.value} cannot become {to.value}"):
        check_move(end, to)


@pytest.mark.parametrize("state", sorted(LIVE, key=str))
def test_a_live_session_can_be_ended_at_any_time(state):
    for end in ENDS - {SessionState.ABANDONED}:
        check_move(state, end)


def test_only_a_suspended_session_is_abandoned():
    check_move(SessionState.SUSPENDED, SessionState.ABANDONED)
    for state in LIVE - {SessionState.SUSPENDED}:
        with pytest.raises(IllegalMove):
            check_move(state, SessionState.ABANDONED)


def test_nothing_becomes_created_or_itself():
    for state in SessionState:
        for to in {SessionState.CREATED, state}:
            with pytest.raises(IllegalMove):
                check_move(state, to)
