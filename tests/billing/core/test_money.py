"""What people type as amounts."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.money import plain, typed


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.50", "1.5"),
        (" 7 ", "7"),
        ("-1e3", "-1000"),
        ("+.5", "0.5"),
        ("2.", "2"),
        ("1E-2", "0.01"),
    ],
)
def test_numbers(text, number):
    assert typed(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "1_0", "1,50", "1 0", "0x1", "NaN", "sNaN", "Infinity", "١", "1e1000", "1\x00"],
)
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match="is no number"):
        typed(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=18))
def test_what_is_written_is_read(number):
    assert typed(plain(number)) == number
