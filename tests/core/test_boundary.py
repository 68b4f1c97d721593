"""The clean boundary: the log holds whole characters only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.core.boundary import CleanBoundary
from streaming.core.chunks import Token, TokenChunk

# An event has ids and, at the end of a character, text.
CHUNKS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=3),
        st.sampled_from(["", "", "a", "🌙", "\n"]),
    ).map(lambda event: TokenChunk(*event)),
    max_size=20,
)


@given(CHUNKS, st.booleans())
def test_no_token_is_lost_doubled_or_given_before_its_text(chunks, is_finished):
    if is_finished:
        chunks = [*chunks, TokenChunk([2], "", "stop")]
    boundary = CleanBoundary()
    given_out: list[Token] = []
    for chunk in chunks:
        tokens = boundary.feed(chunk)
        given_out += tokens
        assert not tokens or tokens[-1].text or chunk.finish_reason
    produced = [token for chunk in chunks for token in chunk.token_ids]
    assert [token.id for token in given_out] == produced[: len(produced) - boundary.waiting]
    assert "".join(token.text for token in given_out) == "".join(chunk.text for chunk in chunks)
    assert not (is_finished and boundary.waiting)


def test_ids_wait_for_their_text():
    boundary = CleanBoundary()
    assert boundary.feed(TokenChunk([10813], "")) == []
    assert boundary.feed(TokenChunk([230], "")) == []
    assert boundary.waiting == 2
    moon = [Token(10813, ""), Token(230, ""), Token(243, "🌙")]
    assert boundary.feed(TokenChunk([243], "🌙")) == moon
    assert boundary.waiting == 0


def test_an_answer_may_end_inside_a_character():
    boundary = CleanBoundary()
    boundary.feed(TokenChunk([10813], ""))
    assert boundary.feed(TokenChunk([230], "", "length")) == [Token(10813, ""), Token(230, "")]
