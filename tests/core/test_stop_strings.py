"""Stop strings: the tokens an answer came in make no difference."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from streaming.core.chunks import Token
from streaming.core.stop_strings import StopMatcher

TEXTS = st.text("abé🌙\n", max_size=24)
STOPS = st.lists(st.text("abé🌙\n", min_size=1, max_size=4), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 60), max_size=30)


def tokens_of(text: str, cuts: list[int]) -> list[list[Token]]:
    """Groups of tokens as the boundary gives them: in each, text comes with the last."""
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts} - {0}), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(places) if a < b]
    return [
        [Token(10 * number, "")] * (len(cuts) % 3) + [Token(10 * number + 1, part)]
        for number, part in enumerate(parts)
    ]


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The reference, on the joined text: the stop string that is complete first ends it."""
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


@given(TEXTS, STOPS, CUTS)
@example("ab", ["b"], [1])
def test_any_tokenisation_matches_as_the_joined_text(text, stops, cuts):
    matcher = StopMatcher(stops)
    shown: list[Token] = []
    stopped = False
    for group in tokens_of(text, cuts):
        tokens, stopped = matcher.feed(group)
        shown += tokens
        if stopped:
            break
    else:
        shown += matcher.flush()
    assert ("".join(token.text for token in shown), stopped) == cut_at_stop(text, stops)
    assert matcher.held_tokens == 0


@given(TEXTS, STOPS, CUTS, st.integers(0, 30))
def test_a_match_survives_a_seam_anywhere(text, stops, cuts, seam):
    """What one matcher has let go, a second one continues: it matches as if there were one."""
    groups = tokens_of(text, cuts)
    first, second = StopMatcher(stops), StopMatcher(stops)
    shown: list[Token] = []
    for group in groups[:seam]:
        tokens, stopped = first.feed(group)
        shown += tokens
        if stopped:
            return
    # The next attempt produces again whatever the first matcher still held.
    flat = [token for group in groups for token in group]
    stopped = False
    for token in flat[len(shown) :]:
        tokens, stopped = second.feed([token])
        shown += tokens
        if stopped:
            break
    else:
        shown += second.flush()
    assert ("".join(token.text for token in shown), stopped) == cut_at_stop(text, stops)


@given(TEXTS, STOPS, CUTS)
def test_what_is_let_go_ends_with_a_whole_character(text, stops, cuts):
    matcher = StopMatcher(stops)
    for group in tokens_of(text, cuts):
        tokens, stopped = matcher.feed(group)
        assert stopped or not tokens or tokens[-1].text


def test_text_that_may_begin_a_stop_string_is_held():
    matcher = StopMatcher(["END!"])
    assert matcher.feed([Token(1, "the "), Token(2, "EN")]) == ([Token(1, "the ")], False)
    assert matcher.held_tokens == 1
    assert matcher.feed([Token(3, "D.")]) == ([Token(2, "EN"), Token(3, "D.")], False)


def test_the_tokens_of_the_stop_string_count_without_text():
    matcher = StopMatcher(["END"])
    matcher.feed([Token(1, "a"), Token(2, " E")])
    tokens, stopped = matcher.feed([Token(3, "N"), Token(4, "D and more"), Token(5, "x")])
    assert stopped
    assert tokens == [Token(2, " "), Token(3, ""), Token(4, "")]


def test_a_begun_character_is_held_with_the_rest_of_it():
    matcher = StopMatcher(["🌙!"])
    assert matcher.feed([Token(1, ""), Token(2, "🌙")]) == ([], False)
    assert matcher.held_tokens == 2
