"""vLLM's events as recorded from 0.32, and what each of them means."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.core.chunks import UNKNOWN_ID, Sampling, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from tests.engines.client import Recording, generation

HEAD = b'data: {"id":"cmpl-gw-2","object":"text_completion","created":1795963429,"model":"smollm2",'
FIRST = HEAD + (
    b'"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":[1,2],"token_ids":[10813]}]}\n\n'
)
SECOND = HEAD + (
    b'"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":null,"token_ids":[230]}]}\n\n'
)
LAST = (
    HEAD
    + (
        '"choices":[{"index":0,"text":"🌙","logprobs":null,"finish_reason":"length","stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":[243]}]}\n\n'
    ).encode()
)
USAGE = HEAD + (
    b'"choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":1}},"system_fingerprint":"vllm-0.32.0-328b0425"}\n\n'
)
DONE = b"data: [DONE]\n\n"
WHOLE = FIRST + SECOND + b": keep-alive\n\n" + LAST + USAGE + DONE
MOON = [TokenChunk([10813], ""), TokenChunk([230], ""), TokenChunk([243], "🌙", "length")]


def event(choice: str) -> bytes:
    return HEAD + b'"choices":[{"index":0,' + choice.encode() + b"}]}\n\n"


@given(st.integers(1, len(WHOLE)))
@settings(max_examples=60)
async def test_any_reads_give_the_same_chunks(piece):
    asked = generation()
    assert await Recording("vllm", WHOLE, piece=piece).chunks(asked) == MOON
    usage = asked.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_prompt_tokens) == (2, 3, 1)


async def test_what_is_asked():
    engine = Recording("vllm", WHOLE)
    sampling = Sampling(0.7, 0.9, 5, logit_bias={3: 1.0}, extra={"top_k": 4})
    await engine.chunks(generation(sampling=sampling, min_tokens=2))
    assert engine.asked == [
        (
            "/v1/completions",
            {
                "model": "smollm2", "prompt": [1, 2], "stream": True, "return_token_ids": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": False},
                "temperature": 0.7, "top_p": 0.9, "top_k": 4, "max_tokens": 6, "min_tokens": 2,
                "seed": 5, "logit_bias": {"3": 1.0},
            },
        )
    ]  # fmt: skip


async def test_penalties_of_the_answer_so_far_become_a_bias():
    engine = Recording("vllm", WHOLE)
    sampling = Sampling(0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={7: 2.0})
    produced = Counter({7: 2, 8: 1, UNKNOWN_ID: 3})
    await engine.chunks(generation(sampling=sampling, produced=produced))
    body = engine.asked[0][1]
    assert body["logit_bias"] == {"7": 1.0, "8": -0.75}
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, 0.25)


async def test_no_more_biases_than_vllm_takes():
    engine = Recording("vllm", WHOLE)
    produced = Counter({token: 1 + (token == 1999) for token in range(2000)})
    await engine.chunks(generation(sampling=Sampling(0, frequency_penalty=1), produced=produced))
    bias = engine.asked[0][1]["logit_bias"]
    assert len(bias) == 1024
    assert bias["1999"] == -2


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", Cause.CLOSED),
        (FIRST, Cause.CLOSED),
        (FIRST + DONE, Cause.CLOSED),
        (FIRST + LAST[:-20], Cause.CLOSED),
        (event('"text":"","finish_reason":"abort","token_ids":[]') + DONE, Cause.ABORTED),
        (event('"text":"","finish_reason":"error","token_ids":[]'), Cause.ABORTED),
        (
            FIRST + b'data: {"error":{"message":"EngineCore encountered an issue.",'
            b'"type":"InternalServerError","param":null,"code":500}}\n\n' + DONE,
            Cause.ENGINE_ERROR,
        ),
        (b'data: {"error":"gone"}\n\n', Cause.ENGINE_ERROR),
        (LAST[:90] + b"\n\n", Cause.MALFORMED),
        (b"data: 7\n\n", Cause.MALFORMED),
        (b'data: {"choices":7}\n\n', Cause.MALFORMED),
        (b'data: {"choices":[7]}\n\n', Cause.MALFORMED),
        (event('"text":7,"finish_reason":null,"token_ids":[1]'), Cause.MALFORMED),
        (event('"text":"a","finish_reason":[],"token_ids":[1]'), Cause.MALFORMED),
        (event('"text":"a","finish_reason":null,"token_ids":["1"]'), Cause.MALFORMED),
        (event('"text":"a","finish_reason":null,"token_ids":[-1]'), Cause.MALFORMED),
        (event('"text":"a","finish_reason":null,"token_ids":[4294967296]'), Cause.MALFORMED),
        (event('"text":"\\ud800","finish_reason":null,"token_ids":[1]'), Cause.MALFORMED),
        (FIRST.replace(b"[1,2]", b"[1,3]"), Cause.MISMATCH),
        (FIRST.replace(b'"smollm2"', b'"other"'), Cause.MISMATCH),
    ],
)
async def test_what_is_no_finish_fails_the_attempt(data, cause):
    with pytest.raises(AttemptFailed) as caught:
        await Recording("vllm", data).chunks(generation())
    assert caught.value.cause is cause


async def test_an_error_of_the_client_inside_the_stream():
    data = (
        b'data: {"error":{"message":"bad grammar","type":"BadRequestError","code":400}}\n\n' + DONE
    )
    with pytest.raises(RejectedByEngine) as caught:
        await Recording("vllm", data).chunks(generation())
    assert (caught.value.status, caught.value.in_stream) == (400, True)


async def test_a_detected_repetition_is_a_stop():
    data = event('"text":"x","finish_reason":"repetition","token_ids":[1]')
    assert await Recording("vllm", data).chunks(generation()) == [TokenChunk([1], "x", "stop")]


async def test_without_ids_the_running_usage_counts():
    def counted(text: str, finish: str, completion: int) -> bytes:
        return (
            HEAD
            + (
                f'"choices":[{{"index":0,"text":"{text}","finish_reason":{finish}}}],'
                f'"usage":{{"prompt_tokens":9,"completion_tokens":{completion}}}}}\n\n'
            ).encode()
        )

    data = counted("a", "null", 1) + counted("", "null", 3) + counted("b", '"stop"', 5)
    engine = Recording("vllm", data)
    asked = generation("text")
    assert await engine.chunks(asked) == [
        TokenChunk([UNKNOWN_ID], "a"),
        TokenChunk([UNKNOWN_ID] * 2, ""),
        TokenChunk([UNKNOWN_ID] * 2, "b", "stop"),
    ]
    assert asked.usage.prompt_tokens == 9
    assert engine.asked[0][1]["stream_options"]["continuous_usage_stats"] is True


async def test_without_ids_and_usage_an_event_is_a_token():
    data = event('"text":"a","finish_reason":null') + event('"text":"","finish_reason":"stop"')
    assert await Recording("vllm", data).chunks(generation("text")) == [
        TokenChunk([UNKNOWN_ID], "a"),
        TokenChunk([UNKNOWN_ID], "", "stop"),
    ]


@pytest.mark.parametrize(("text", "whole"), [("Moon 🌙", True), ("Moon \ufffd", False), ("", True)])
async def test_the_engine_tells_whether_tokens_end_inside_a_character(text, whole):
    engine = Recording("vllm", calls=lambda path, body: {"prompt": text})
    assert await engine.dialect.ends_whole(range(100)) is whole
    assert engine.asked == [("/detokenize", {"tokens": list(range(92, 100))})]


@pytest.mark.parametrize("answer", [{}, {"tokens": "x"}, {"tokens": [None]}, []])
async def test_an_odd_answer_to_a_call_fails_the_attempt(answer):
    engine = Recording("vllm", calls=lambda path, body: answer)
    with pytest.raises(AttemptFailed) as caught:
        await engine.dialect.render("smollm2", [])
    assert caught.value.cause is Cause.MALFORMED


@pytest.mark.parametrize("failure", [b'data: {"error":{"code":500}}\n\n', b"data: {\n\n"])
async def test_tokens_before_an_error_in_the_same_read_are_not_lost(failure):
    engine = Recording("vllm", FIRST + SECOND + failure)
    stream = engine.dialect.generate(generation())
    assert await anext(stream) == MOON[:2]
    with pytest.raises(AttemptFailed):
        await anext(stream)
    found: list[TokenChunk] = []
    with pytest.raises(AttemptFailed):
        await engine.pour(generation(), found)
    assert found == MOON[:2]
