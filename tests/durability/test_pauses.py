"""How long the journal waits for more before it writes again."""

from __future__ import annotations

from streaming.runtime.journal import FLUSH_INTERVAL, LONGEST_INTERVAL, interval_after


def test_the_pause_grows_with_the_sessions_of_a_flush_up_to_what_no_reader_notices() -> None:
    few, some, many, too_many = (interval_after(n) for n in (1, 100, 300, 10_000))
    assert FLUSH_INTERVAL <= few < some < many < too_many == LONGEST_INTERVAL
    assert few < 1.1 * FLUSH_INTERVAL
