"""The token budget over several attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.budget import TokenBudget

SIZES = st.integers(0, 200)


@pytest.mark.parametrize(
    ("max_tokens", "context", "remaining"),
    [(None, None, None), (10, None, 7), (None, 100, 47), (10, 100, 7), (90, 100, 47), (3, 100, 0)],
)
def test_the_tighter_limit_counts(max_tokens, context, remaining):
    assert TokenBudget(max_tokens).remaining(50, 3, context) == remaining


@given(st.none() | SIZES, SIZES, st.none() | SIZES, st.lists(SIZES, max_size=5))
def test_attempts_together_never_exceed_what_one_might(max_tokens, prompt, context, attempts):
    budget = TokenBudget(max_tokens)
    whole = budget.remaining(prompt, 0, context)
    produced = 0
    for wanted in attempts:
        left = budget.remaining(prompt, produced, context)
        assert left is None or left >= 0
        produced += wanted if left is None else min(wanted, left)
    assert whole is None or produced <= whole


def test_what_must_still_come_never_falls_below_nothing():
    budget = TokenBudget(20, min_tokens=5)
    assert [budget.still_required(produced) for produced in (0, 4, 5, 9)] == [5, 1, 0, 0]
