"""What a session may come to, and which thresholds are reached."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.quota import TOKENS_PER_MESSAGE, TOKENS_PER_PROMPT, prompt_estimate, reached


@pytest.mark.parametrize(
    ("contents", "tokens"),
    [
        ([], 0),
        ([""], TOKENS_PER_MESSAGE),
        (["abc"], 1 + TOKENS_PER_MESSAGE),
        (["abcd"], 2 + TOKENS_PER_MESSAGE),
        (["你好"], 2 + TOKENS_PER_MESSAGE),
        (["abc", "abc"], 2 * (1 + TOKENS_PER_MESSAGE)),
        (["\ud800"], 1 + TOKENS_PER_MESSAGE),
    ],
)
def test_an_estimate_of_the_prompt(contents, tokens):
    assert prompt_estimate(contents) == TOKENS_PER_PROMPT + tokens


@pytest.mark.parametrize(
    ("used", "limit", "thresholds"),
    [
        (79, 100, []),
        (80, 100, [80]),
        (99, 100, [80]),
        (100, 100, [80, 100]),
        (1000, 100, [80, 100]),
        (Decimal("79.999999999999999999"), Decimal(100), []),
        (Decimal("0.8"), Decimal(1), [80]),
        (-5, 100, []),
        (100, None, []),
        (100, 0, []),
    ],
)
def test_thresholds(used, limit, thresholds):
    assert reached(used, limit) == thresholds


@given(st.integers(-100, 10**12), st.integers(0, 10**12))
def test_who_has_reached_the_limit_has_reached_all(used, limit):
    thresholds = reached(used, limit)
    assert (100 in thresholds) == (0 < limit <= used)
    assert thresholds == sorted(thresholds)
    assert 100 not in thresholds or 80 in thresholds
