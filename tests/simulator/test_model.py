"""The pretend model is a pure function of the bytes before."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine_simulator.alphabets import ALPHABETS
from tests.engine_simulator.model import WrongPrefix, continue_prompt, expected_answer
from tests.engine_simulator.templates import TEMPLATES
from tests.engine_simulator.vocabulary import (
    CONTROL_IDS,
    TOKENS,
    encode,
    encode_bytes,
    spelt_bytes,
    text_bytes,
)

from .client import question


@given(st.text())
def test_tokenizing_loses_nothing(text: str) -> None:
    ids = encode(text, parse_special=False)
    assert text_bytes(ids) == text.encode("utf-8", "replace")
    assert not set(ids) & set(CONTROL_IDS.values())


def test_control_tokens_are_parsed_only_when_asked() -> None:
    text = "a<|im_end|>b"
    assert CONTROL_IDS["<|im_end|>"] in encode(text, parse_special=True)
    assert spelt_bytes(encode(text, parse_special=True)) == text.encode()
    assert len(encode("<|im_end|>", parse_special=False)) > 3


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("alphabet", sorted(ALPHABETS))
@pytest.mark.parametrize("seed", [None, 7])
def test_continues_the_same_from_every_token_and_every_byte(
    template: str, alphabet: str, seed: int | None
) -> None:
    messages = question(f"Go on [[tokens=60]][[alphabet={alphabet}]]")
    answer = expected_answer(
        messages, temperature=0 if seed is None else 0.8, seed=seed, template=template
    )
    chosen = TEMPLATES[template]
    prompt = chosen.render_ids(messages)
    for said in range(61):
        start = continue_prompt(prompt + answer.token_ids[:said], chosen, seed)
        assert start.index == said
        rest = [piece.token_id for piece in islice(start.pieces, 60 - said)]
        assert rest == answer.token_ids[said:60]
    data = answer.text.encode()
    for said in range(len(data)):
        start = continue_prompt(prompt + encode_bytes(data[:said]), chosen, seed)
        rest = b"".join(piece.data for piece in islice(start.pieces, 60 - start.index))
        assert rest == data[said:]


def test_a_wrong_prefix_is_refused_whatever_is_wrong() -> None:
    messages = question("Be exact [[tokens=60]]")
    chosen = TEMPLATES["chatml"]
    prompt = chosen.render_ids(messages)
    ids = expected_answer(messages).spoken_ids
    for prefix in (
        ids[:10] + ids[11:20],  # one missing
        [*ids[:10], ids[9], *ids[10:20]],  # one doubled
        [*ids[:10], CONTROL_IDS["<|im_end|>"]],  # ended too early
        [*ids[:10], *encode_bytes(b"\xff")],
        [*ids[:10], *encode("<|im_end|>\n", parse_special=True)],
        [*ids[:10], *encode("<|im_start|>user\n", parse_special=True)],
    ):
        with pytest.raises(WrongPrefix):
            continue_prompt(prompt + prefix, chosen, None)
    with pytest.raises(WrongPrefix):
        continue_prompt(prompt + ids[:20], chosen, 1)


def test_a_look_alike_stays_text_and_breaks_when_parsed() -> None:
    messages = question("Talk of control tokens [[tokens=400]][[alphabet=control]]")
    answer = expected_answer(messages)
    assert "<|im_end|>" in answer.text
    assert "<|eot_id|>" in answer.text
    cut = answer.text.index("<|im_end|>") + len("<|im_end|>")
    chosen = TEMPLATES["chatml"]
    prompt = chosen.render_ids(messages)
    continue_prompt(prompt + encode(answer.text[:cut], parse_special=False), chosen, None)
    with pytest.raises(WrongPrefix):
        continue_prompt(prompt + encode(answer.text[:cut], parse_special=True), chosen, None)


def test_answers_differ_by_prompt_and_by_seed_but_not_by_seed_when_greedy() -> None:
    one, other = question("One [[tokens=50]]"), question("Other [[tokens=50]]")
    assert expected_answer(one).text != expected_answer(other).text
    assert expected_answer(one, seed=1) == expected_answer(one, seed=2)
    sampled = [expected_answer(one, temperature=1, seed=seed).text for seed in (1, 2)]
    assert sampled[0] != sampled[1]


def test_length_and_finish() -> None:
    assert expected_answer(question("[[tokens=5]]")).completion_tokens == 6
    cut = expected_answer(question("[[tokens=5]]"), max_tokens=5)
    assert (cut.finish_reason, cut.completion_tokens) == ("length", 5)
    endless = expected_answer(question("[[tokens=5]]"), max_tokens=20, ignore_eos=True)
    assert (endless.finish_reason, endless.completion_tokens) == ("length", 20)
    assert expected_answer(question("[[tokens=5]]"), min_tokens=9).completion_tokens == 10
    natural = {expected_answer(question(f"{n}")).completion_tokens - 1 for n in range(60)}
    assert min(natural) >= 40
    assert max(natural) <= 120
    assert len(natural) > 20
    assert expected_answer(question("x"), max_tokens=0, dialect="llamacpp").completion_tokens == 1


def test_most_split_characters_are_there() -> None:
    for text, parts in {" 🌙": 3, "龍": 2, "𠮷": 4, "é": 2, "的": 1}.items():
        assert len(encode(text, parse_special=False)) == parts, text
    assert {b"data:", b"data: ", b"[DONE]", b"\n\n", b"\x00"} <= set(TOKENS)
