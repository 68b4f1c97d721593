"""The official client, unchanged, against the gateway."""

from __future__ import annotations

import openai
import pytest

from tests.durability.reader import question
from tests.engine_simulator.model import expected_answer
from tests.openai_front.conftest import MODEL, Front

ASK = question("Tell the SDK", 25)
ANSWER = expected_answer(ASK)


def client(front: Front, **options) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{front.url}/v1", max_retries=0, **{"api_key": front.key, **options}
    )


def async_client(front: Front) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=front.key, max_retries=0)


def ask(front: Front, **parameters):
    body = {"model": MODEL, "messages": ASK, "temperature": 0, **parameters}
    return client(front).chat.completions.create(**body)


def test_a_whole_answer(front: Front) -> None:
    answer = ask(front)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER.text)
    assert choice.message.refusal is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == ANSWER.prompt_tokens
    assert answer.usage.completion_tokens == ANSWER.completion_tokens
    assert answer.usage.total_tokens == ANSWER.prompt_tokens + ANSWER.completion_tokens


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream(front: Front, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(ask(front, stream=True, **options))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    first, *_ = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER.text
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [finish for finish in finishes if finish] == ["stop"]
    if include_usage:
        *others, last = chunks
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == ANSWER.completion_tokens
        assert last.usage.prompt_tokens == ANSWER.prompt_tokens
        assert {chunk.usage for chunk in others} == {None}
    else:
        assert finishes[-1] == "stop"
        assert {chunk.usage for chunk in chunks} == {None}


async def test_async(front: Front) -> None:
    async with async_client(front) as openai_client:
        whole = await openai_client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=0
        )
        assert whole.choices[0].message.content == ANSWER.text
        stream = await openai_client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=0, stream=True
        )
        parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        assert "".join(parts) == ANSWER.text
        listed = [model.id async for model in openai_client.models.list()]
        assert MODEL in listed


async def test_the_stream_helper(front: Front) -> None:
    """``chat.completions.stream()`` accumulates chunks and is strict about their shape."""
    async with (
        async_client(front) as openai_client,
        openai_client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER.text


def test_length_and_stop(front: Front) -> None:
    cut = ask(front, max_completion_tokens=7)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 7
    assert ANSWER.text.startswith(cut.choices[0].message.content)
    stop = ANSWER.text[10:13]
    stopped = ask(front, stop=stop)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == ANSWER.text[: ANSWER.text.index(stop)]


def test_errors_are_the_sdks(front: Front) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong_key:
        client(front, api_key="ub-wrong").models.list()
    assert wrong_key.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(front, model="no-such-model")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        ask(front, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.APIStatusError) as large:
        ask(front, messages=question("x" * 300_000, 5))
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")


def test_an_error_within_the_stream_is_raised(front: Front) -> None:
    front.engine.set_fault(kind="error_4xx", at_token=6)
    with pytest.raises(openai.APIError) as raised:
        list(ask(front, stream=True))
    assert raised.value.code == "engine_rejected"


def test_503_when_no_more_streams_fit(front: Front) -> None:
    full = front.stack.start_gateway(MAX_STREAMS="0")
    full_client = openai.OpenAI(base_url=f"{full.url}/v1", api_key=front.key, max_retries=0)
    with pytest.raises(openai.InternalServerError) as raised:
        full_client.chat.completions.create(model=MODEL, messages=ASK)
    assert (raised.value.status_code, raised.value.code) == (503, "overloaded")
    assert raised.value.response.headers["retry-after"] == "1"
    full.terminate()
