"""Seam grades, and the comparison of a regenerated answer with what the reader has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.chunks import UNKNOWN_ID, Token
from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.core.seams import SeamGrade, Suppressor, seam_grade

IDS = NodeOptions()
TEXT = NodeOptions("text", "chatml")
EXACT, BY_TEXT, AGAIN = SeamGrade.EXACT, SeamGrade.TEXT, SeamGrade.REGENERATED


@pytest.mark.parametrize(
    ("options", "prompt_by_ids", "ids_known", "plain_tokens", "answer", "grade"),
    [
        (IDS, True, True, False, "Moon", EXACT),
        (IDS, True, True, False, "<|im_end|>", EXACT),
        (IDS, True, False, True, "<|im_end|>", BY_TEXT),
        (IDS, True, False, False, "Moon", AGAIN),
        (NodeOptions("ids", "chatml"), True, False, False, "Moon", BY_TEXT),
        (NodeOptions("ids", "chatml"), True, False, False, "<|im_end|>", AGAIN),
        (TEXT, False, True, False, "Moon", BY_TEXT),
        (TEXT, False, True, True, "<|eot_id|>", AGAIN),
        (TEXT, False, True, False, "Moon <|im", AGAIN),
        (NodeOptions("regenerate", "chatml"), False, True, True, "Moon", AGAIN),
    ],
)
def test_the_best_grade(options, prompt_by_ids, ids_known, plain_tokens, answer, grade):
    found = seam_grade(
        options,
        prompt_by_ids=prompt_by_ids,
        ids_known=ids_known,
        plain_tokens=plain_tokens,
        answer=answer,
    )
    assert found is grade


@given(st.text("ab🌙", max_size=20), st.integers(0, 20), st.lists(st.integers(1, 4), max_size=20))
def test_only_what_is_new_passes(answer, known, sizes):
    suppressor = Suppressor(answer[:known], ())
    position, shown = 0, ""
    for size in [*sizes, len(answer)]:
        part = answer[position : position + size]
        position += len(part)
        shown += "".join(token.text for token in suppressor.feed([Token(1, part)] if part else []))
    assert shown == answer[known:]
    assert suppressor.done


def test_a_token_that_is_partly_new_has_no_id():
    suppressor = Suppressor("The moo", [1, 7])
    assert suppressor.feed([Token(1, "The"), Token(2, " moon")]) == [Token(UNKNOWN_ID, "n")]
    assert suppressor.repeated_tokens == 1
    assert suppressor.feed([Token(3, "!")]) == [Token(3, "!")]


def test_a_begun_character_of_the_log_is_not_counted_twice():
    suppressor = Suppressor("Hi ", [1, 2, 3])  # one token, and two that begin the moon
    tokens = [Token(1, "Hi "), Token(2, ""), Token(3, ""), Token(4, "🌙"), Token(2, "")]
    assert suppressor.feed(tokens) == [Token(4, "🌙"), Token(2, "")]
    assert suppressor.repeated_tokens == 3


def test_ids_that_do_not_follow_on_the_log_are_unknown():
    suppressor = Suppressor("Hi ", [1, 2])
    tokens = [Token(1, "Hi "), Token(3, ""), Token(4, "🌙")]
    assert suppressor.feed(tokens) == [Token(UNKNOWN_ID, ""), Token(4, "🌙")]
    assert suppressor.feed([Token(2, ""), Token(5, "!")]) == [Token(2, ""), Token(5, "!")]


@pytest.mark.parametrize("other", ["The sun", "A", "The  moon"])
def test_another_answer_is_a_mismatch(other):
    suppressor = Suppressor("The moon", [1, 2])
    with pytest.raises(AttemptFailed) as caught:
        suppressor.feed([Token(1, character) for character in other])
    assert caught.value.cause is Cause.MISMATCH
