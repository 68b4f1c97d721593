"""Templates rendered here, and text that must not reach an engine as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.templates import TEMPLATES, contains_control, spells_control
from tests.engine_simulator.templates import TEMPLATES as ENGINES_OWN
from tests.engine_simulator.vocabulary import CONTROL_NAMES

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Two\nlines "},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "🌙?"},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_rendered_as_the_engine_does(name):
    assert TEMPLATES[name].render(MESSAGES) == ENGINES_OWN[name].render(MESSAGES)


@pytest.mark.parametrize(
    "control", [*CONTROL_NAMES, "<|fim_prefix|>", "<|python_tag|>", "<|eom_id|>"]
)
def test_a_spelt_control_token_is_found(control):
    assert contains_control(f"a {control} b")
    assert contains_control(control)
    for end in range(2, len(control)):
        assert not contains_control(control[:end])
        assert spells_control("a " + control[:end]), "it might be completed across the seam"
        assert not spells_control(control[:end] + " b")


@pytest.mark.parametrize(
    "text", ["", "a < b | c > d", "<", "a <| b", "<|>", "||>", "<b>", "|im_end|>"]
)
def test_other_text_is_free(text):
    assert not contains_control(text)
    assert not spells_control(text)


@given(st.text("<|>im_ ", max_size=12), st.text("<|>im_ ", max_size=12))
def test_nothing_free_is_completed_by_what_follows(answer, rest):
    """Unless what follows spells the control token by itself, or from a lone ``<`` on."""
    if not spells_control(answer) and not answer.endswith("<"):
        assert contains_control(answer + rest) == contains_control(rest)
