"""How many tokens are billed, under either policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.policy import INTERRUPTED, Policy, Progress, billable
from streaming.core.state import SessionState

STATES = st.sampled_from([state.value for state in SessionState])
COUNTS = st.integers(0, 60)


@st.composite
def progresses(draw: st.DrawFn, states: st.SearchStrategy[str] = STATES) -> Progress:
    log = draw(COUNTS)
    delivered = draw(st.integers(0, log))
    return Progress(draw(states), log, draw(COUNTS), delivered)


@given(progresses())
def test_what_was_delivered_is_billed(progress):
    assert billable(Policy.DELIVERED, progress) == progress.delivered


@given(progresses())
def test_compensation_never_bills_more_than_there_is_nor_less_than_was_delivered(progress):
    assert progress.delivered <= progress.compensated <= progress.log
    billed = billable(Policy.INTERRUPT_COMPENSATED, progress)
    if progress.state in INTERRUPTED:
        assert billed == progress.compensated
    else:
        assert billed == progress.delivered


@given(progresses(st.sampled_from(sorted(INTERRUPTED))))
def test_compensation_covers_the_last_complete_chunk_and_the_one_in_flight(progress):
    complete = min(max(progress.sent, progress.delivered), progress.log)
    assert progress.compensated - complete == (1 if complete < progress.log else 0)


def test_what_somebody_wanted_is_no_interruption():
    assert {"completed", "stopped", "created", "streaming", "recovering"} == (
        {state.value for state in SessionState} - INTERRUPTED
    )


def test_more_than_there_is_cannot_have_been_delivered():
    with pytest.raises(ValueError, match="cannot have been delivered"):
        Progress("completed", 3, 3, 4)
