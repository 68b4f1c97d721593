"""How far a reader has come, by the evidence."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from streaming.core.delivery import Evidence, Marks

seqs = st.integers(0, 50)
marks = st.builds(Marks, seqs, seqs, seqs, seqs)


@given(marks)
def test_never_more_than_was_sent_and_never_without_evidence(one: Marks) -> None:
    assert one.delivered <= one.sent
    assert (one.evidence is Evidence.NONE) == (one.delivered == 0)


@given(marks, marks)
def test_learning_only_adds(one: Marks, other: Marks) -> None:
    both = one.copy()
    both.learn(other)
    assert both.delivered >= max(one.delivered, other.delivered)
    again = both.copy()
    again.learn(other)
    assert again == both


@given(marks, seqs)
def test_a_lower_cursor_outweighs_a_socket_only(one: Marks, cursor: int) -> None:
    proven = min(one.sent, max(one.cursor, one.acked))
    before = one.delivered
    one.deny(cursor)
    assert one.delivered <= before
    assert one.delivered >= proven
    if cursor < before:
        assert one.delivered == max(proven, min(one.sent, cursor, one.taken))


@given(marks, marks)
def test_what_is_new_brings_the_stored_up_to_date(one: Marks, news: Marks) -> None:
    stored = one.copy()
    one.learn(news)
    changes = one.since(stored)
    stored.learn(changes)
    assert stored == one
    assert one.since(one) == Marks()


def test_the_strongest_kind_that_proves_all_of_it() -> None:
    assert Marks(sent=9, taken=9, cursor=5, acked=3).evidence is Evidence.SOCKET
    assert Marks(sent=9, taken=9, cursor=9, acked=3).evidence is Evidence.CURSOR
    assert Marks(sent=9, taken=2, cursor=9, acked=9).evidence is Evidence.ACK
    assert Marks(sent=4, acked=9).evidence is Evidence.ACK
