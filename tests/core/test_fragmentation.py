"""The fragmentation index: occupied, less what live sessions need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.fragmentation import fragmentation_index


@pytest.mark.parametrize(
    ("usage", "live", "index"),
    [
        (0.0, [], 0.0),
        (0.5, [], 0.5),
        (0.5, [100, 300], 0.24),  # 7 and 19 blocks of 16
        (0.01, [1], 0.0),  # one block is what one token needs
        (0.02, [1], 0.01),
        (0.1, [800], 0.0),  # sessions with the same beginning share blocks
        (1.0, [], 1.0),
    ],
)
def test_index(usage, live, index):
    assert fragmentation_index(usage, 1600, 16, live) == pytest.approx(index)


@pytest.mark.parametrize("figures", [(None, 1600, 16), (0.5, None, 16), (0.5, 0, 16)])
def test_an_engine_that_does_not_tell_has_none(figures):
    assert fragmentation_index(*figures, [100]) is None


def test_a_cache_without_blocks_counts_tokens():
    assert fragmentation_index(0.5, 1000, None, [100]) == pytest.approx(0.4)


@given(
    usage=st.floats(0, 1),
    blocks=st.integers(1, 10_000),
    block=st.integers(1, 256),
    live=st.lists(st.integers(0, 5000), max_size=20),
)
def test_it_is_a_share_and_more_sessions_never_raise_it(usage, blocks, block, live):
    index = fragmentation_index(usage, blocks * block, block, live)
    more = fragmentation_index(usage, blocks * block, block, [*live, 1])
    assert index is not None
    assert more is not None
    assert 0 <= more <= index <= 1
