"""llama.cpp's native events as recorded from b11434: ids of long characters are missing in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.core.chunks import UNKNOWN_ID, Sampling, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from tests.engines.client import Recording, generation


def event(text: str, tokens: str, predicted: int) -> bytes:
    return (
        f'data: {{"index":0,"content":"{text}","tokens":{tokens},"stop":false,"id_slot":-1,'
        f'"tokens_predicted":{predicted},"tokens_evaluated":42}}\n\n'
    ).encode()


def ending(stop_type: str, predicted: int) -> bytes:
    return (
        f'data: {{"index":0,"content":"","tokens":[],"id_slot":0,"stop":true,"model":"smollm2",'
        f'"tokens_predicted":{predicted},"tokens_evaluated":42,"stop_type":"{stop_type}",'
        f'"stopping_word":"","timings":{{"cache_n":5,"prompt_n":37}}}}\n\n'
    ).encode()


WHOLE = event("Hi ", "[28]", 1) + b":\n\n" + event("🌙", "[243]", 4) + ending("limit", 4)


def pieces(answer: list[int]) -> Any:
    return lambda path, body: {"tokens": answer}


@given(st.integers(1, len(WHOLE)))
@settings(max_examples=60)
async def test_any_reads_give_the_same_chunks_and_the_hole_is_filled(piece):
    engine = Recording("llamacpp", WHOLE, piece=piece, calls=pieces([10813, 230, 243]))
    asked = generation()
    assert await engine.chunks(asked) == [
        TokenChunk([28], "Hi "),
        TokenChunk([10813, 230, 243], "🌙"),
        TokenChunk([], "", "length"),
    ]
    usage = asked.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens) == (42, 4, 5)
    question = {"content": "🌙", "add_special": False, "parse_special": False}
    assert [body for path, body in engine.asked if path == "/tokenize"] == [question]


@given(st.integers(1, len(WHOLE)), st.integers(1, 4))
@settings(max_examples=60)
async def test_poured_they_are_the_same_though_the_engine_is_asked_meanwhile(piece, most):
    engine = Recording("llamacpp", WHOLE, piece=piece, calls=pieces([10813, 230, 243]))
    found: list[TokenChunk] = []
    await engine.pour(generation(), found, most)
    assert found == await engine.chunks(generation())


@pytest.mark.parametrize("guess", [[230, 243], [10813, 230, 7], [1, 10813, 230, 243], []])
async def test_a_guess_that_does_not_fit_is_no_id(guess):
    engine = Recording("llamacpp", WHOLE, calls=pieces(guess))
    chunks = await engine.chunks(generation())
    assert chunks[1] == TokenChunk([UNKNOWN_ID, UNKNOWN_ID, 243], "🌙")


async def test_a_piece_is_asked_for_once():
    data = event("🌙", "[243]", 3) + event("🌙", "[243]", 6) + ending("eos", 6)
    engine = Recording("llamacpp", data, calls=pieces([10813, 230, 243]))
    await engine.chunks(generation())
    await engine.chunks(generation())
    assert [path for path, _ in engine.asked].count("/tokenize") == 1


async def test_an_end_inside_a_character_counts_its_tokens():
    data = event("a", "[1]", 1) + ending("limit", 3)
    chunks = await Recording("llamacpp", data, calls=pieces([])).chunks(generation())
    assert chunks[1] == TokenChunk([UNKNOWN_ID] * 2, "", "length")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", Cause.CLOSED),
        (event("a", "[1]", 1), Cause.CLOSED),
        (event("a", "[1]", 1) + ending("eos", 1)[:-9], Cause.CLOSED),
        (ending("none", 1), Cause.ABORTED),
        (
            event("a", "[1]", 1)
            + b'data: {"error":{"code":500,"message":"task cancelled","type":"server_error"}}\n\n',
            Cause.ENGINE_ERROR,
        ),
        (b'data: {"index":0}\n\n', Cause.MALFORMED),
        (event("a", '"x"', 1), Cause.MALFORMED),
        (event("a", "[null]", 1), Cause.MALFORMED),
        (event("a", "[1]", 1).replace(b'predicted":1', b'predicted":"1"'), Cause.MALFORMED),
        (event("a", "[1]", 1).replace(b'"a"', b"[]"), Cause.MALFORMED),
        (event("a", "[1]", 1)[:60] + b"\n\n", Cause.MALFORMED),
        (b"data: []\n\n", Cause.MALFORMED),
    ],
)
async def test_what_is_no_finish_fails_the_attempt(data, cause):
    with pytest.raises(AttemptFailed) as caught:
        await Recording("llamacpp", data, calls=pieces([])).chunks(generation())
    assert caught.value.cause is cause


async def test_an_error_of_the_client_inside_the_stream():
    data = b'data: {"error":{"code":400,"message":"bad","type":"invalid_request_error"}}\n\n'
    with pytest.raises(RejectedByEngine):
        await Recording("llamacpp", data).chunks(generation())


async def test_what_is_asked():
    engine = Recording("llamacpp", WHOLE, calls=pieces([10813, 230, 243]))
    sampling = Sampling(0.7, 0.9, 5, 0.5, 0.25, {3: 1.0}, {"repetition_penalty": 1.1, "top_k": 4})
    await engine.chunks(generation(sampling=sampling, max_tokens=None))
    assert engine.asked[0] == (
        "/completion",
        {
            "prompt": [1, 2], "n_predict": -1, "stream": True, "return_tokens": True,
            "cache_prompt": True, "temperature": 0.7, "top_p": 0.9, "top_k": 4, "min_p": 0.0,
            "presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_penalty": 1.1, "seed": 5,
            "logit_bias": [[3, 1.0]],
        },
    )  # fmt: skip


async def test_a_prompt_is_rendered_with_its_control_tokens():
    def calls(path: str, body: Any) -> Any:
        return {"prompt": "<|im_start|>"} if path == "/apply-template" else {"tokens": [1, 2]}

    engine = Recording("llamacpp", calls=calls)
    assert await engine.dialect.render("smollm2", [{"role": "user", "content": "x"}]) == [1, 2]
    assert engine.asked[1][1] == {
        "content": "<|im_start|>", "add_special": True, "parse_special": True,
    }  # fmt: skip
