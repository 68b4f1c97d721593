"""Lines follow what is to be billed, up and down, and charge nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.core.settlement import Line, settle, standing

TARGETS = st.lists(st.integers(0, 30), max_size=12)
PROMPTS = st.tuples(st.integers(0, 50), st.integers(0, 60))


def settled(targets: list[int], prompt: int, cached: int) -> list[Line]:
    lines: list[Line] = []
    for target in targets:
        lines += settle(lines, target, prompt, cached)
    return lines


def prompt_of(lines: list[Line]) -> int:
    return sum(line.prompt for line in lines)


@given(TARGETS, PROMPTS)
def test_the_sum_of_the_lines_is_what_is_billed(targets, prompts):
    prompt, cached = prompts
    lines: list[Line] = []
    for target in targets:
        lines += settle(lines, target, prompt, cached)
        assert sum(line.output for line in lines) == lines[-1].end == target
        assert prompt_of(lines) == (prompt if target else 0)
        assert sum(line.cached for line in lines) == (min(prompt, cached) if target else 0)


@given(TARGETS, PROMPTS)
def test_settling_again_adds_nothing(targets, prompts):
    lines = settled(targets, *prompts)
    if lines:
        assert settle(lines, lines[-1].end, *prompts) == []


@given(TARGETS, PROMPTS)
def test_lines_are_numbered_and_each_begins_where_the_last_ended(targets, prompts):
    lines = settled(targets, *prompts)
    assert [line.n for line in lines] == list(range(1, len(lines) + 1))
    assert [line.start for line in lines] == [0, *(line.end for line in lines)][: len(lines)]


@given(TARGETS, PROMPTS)
def test_every_token_is_charged_by_one_line_or_none(targets, prompts):
    """Token by token: charged only when it is not charged, given back only when it is."""
    charged: dict[int, int] = {}
    for line in settled(targets, *prompts):
        for token in range(line.start + 1, line.end + 1):
            assert token not in charged
            charged[token] = line.n
        for token in range(line.start, line.end, -1):
            assert charged.pop(token) == line.corrects
    assert sorted(charged) == list(range(1, (targets[-1] if targets else 0) + 1))


@given(TARGETS, PROMPTS)
def test_no_charge_gives_back_more_than_it_took(targets, prompts):
    lines = settled(targets, *prompts)
    for charge in lines:
        if charge.corrects is not None:
            assert charge.output <= 0
            assert charge.prompt <= 0
            continue
        back = [line for line in lines if line.corrects == charge.n]
        assert charge.output + sum(line.output for line in back) >= 0
        assert charge.prompt + sum(line.prompt for line in back) >= 0
        assert 0 <= charge.cached + sum(line.cached for line in back) <= charge.prompt


@given(TARGETS, PROMPTS)
def test_what_stands_is_what_is_billed(targets, prompts):
    lines = settled(targets, *prompts)
    left = [line for line in standing(lines) if line.output]
    assert sum(line.output for line in left) == (targets[-1] if targets else 0)
    # Without a gap: the first begins at the first token, each other where the one before ends.
    assert [line.start for line in left] == [0, *(line.end for line in left)][: len(left)]
    assert prompt_of(standing(lines)) == prompt_of(lines)
    assert all(line.corrects is None for line in left)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12), st.integers(1, 50))
def test_a_prompt_whose_length_becomes_known_late_is_charged_then(steps, prompt):
    """Engines that do not tokenise tell it with the end of an answer."""
    lines: list[Line] = []
    known = False
    for target, told in steps:
        known = known or told
        lines += settle(lines, target, prompt if known else 0, 0)
        assert sum(line.output for line in lines) == target
        if known:
            assert prompt_of(lines) == (prompt if target else 0)
        else:
            assert prompt_of(lines) == 0


def test_a_prompt_is_charged_once_whatever_is_said_of_it_later():
    lines = settle([], 5, 10, 4)
    assert lines == [Line(1, 0, 5, 10, 4)]
    lines += settle(lines, 8, 12, 0)
    assert lines[1:] == [Line(2, 5, 8)]


def test_the_first_settlement_is_a_line_even_of_nothing():
    assert settle([], 0, 10, 0) == [Line(1, 0, 0)]
    assert settle([Line(1, 0, 0)], 0, 10, 0) == []
    assert settle([Line(1, 0, 0)], 2, 10, 0) == [Line(2, 0, 2, 10)]


def test_what_is_given_back_is_taken_from_the_last_charges():
    lines = [Line(1, 0, 5, 10), Line(2, 5, 8), Line(3, 8, 9)]
    assert settle(lines, 4, 10, 0) == [
        Line(4, 9, 8, corrects=3),
        Line(5, 8, 5, corrects=2),
        Line(6, 5, 4, corrects=1),
    ]
    lines += settle(lines, 4, 10, 0)
    assert settle(lines, 0, 10, 0) == [Line(7, 4, 0, -10, corrects=1)]
