"""The chat request: every parameter with a good, a default and a bad value."""

from __future__ import annotations

from typing import Any

import pytest

from streaming.core.budget import TokenBudget
from streaming.core.chat import BadParameter, ChatRequest, NotSupported, parse_chat_request
from streaming.core.chunks import Sampling

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def parsed(**parameters: Any) -> ChatRequest:
    return parse_chat_request({**BODY, **parameters})


def test_the_defaults_are_openais():
    assert parsed() == ChatRequest(
        model="m",
        messages=[{"role": "user", "content": "Hello"}],
        stream=False,
        include_usage=False,
        budget=TokenBudget(None, 0),
        sampling=Sampling(temperature=1.0, top_p=1.0),
        stop=(),
        user="",
    )


NULLABLE = [
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "temperature",
    "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "user",
    "top_k", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids",
    "n", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "modalities", "audio", "prediction",
    "reasoning_effort", "verbosity", "web_search_options", "service_tier", "store", "moderation",
    "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
]  # fmt: skip


@pytest.mark.parametrize("name", NULLABLE)
def test_null_counts_as_absent(name):
    assert parsed(**{name: None}) == parsed()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1), ("logprobs", False), ("top_logprobs", 0), ("response_format", {"type": "text"}),
        ("tools", []), ("tool_choice", "none"), ("tool_choice", "auto"),
        ("parallel_tool_calls", True), ("functions", []), ("function_call", "none"),
        ("modalities", ["text"]), ("reasoning_effort", "none"), ("verbosity", "medium"),
        ("service_tier", "auto"), ("store", False), ("metadata", {"a": "b"}),
        ("safety_identifier", "x"), ("prompt_cache_key", "x"), ("stream", False),
        ("temperature", 1), ("top_p", 1), ("presence_penalty", 0), ("frequency_penalty", 0),
        ("stop", []), ("min_tokens", 0), ("logit_bias", {}), ("user", ""),
    ],
)  # fmt: skip
def test_a_default_passes_and_changes_nothing(name, value):
    assert parsed(**{name: value}) == parsed()


@pytest.mark.parametrize(
    ("parameters", "path", "value"),
    [
        ({"stream": True}, "stream", True),
        ({"stream": True, "stream_options": {"include_usage": True}}, "include_usage", True),
        ({"stream": True, "stream_options": {"include_usage": None}}, "include_usage", False),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_usage", False),
        ({"max_tokens": 5}, "budget", TokenBudget(5)),
        ({"max_completion_tokens": 5}, "budget", TokenBudget(5)),
        ({"max_completion_tokens": 5, "max_tokens": 9}, "budget", TokenBudget(5)),
        ({"max_tokens": 5, "min_tokens": 5}, "budget", TokenBudget(5, 5)),
        ({"temperature": 0}, "sampling", Sampling(temperature=0)),
        ({"temperature": 2}, "sampling", Sampling(temperature=2)),
        ({"top_p": 0.5}, "sampling", Sampling(top_p=0.5)),
        ({"seed": 2**62}, "sampling", Sampling(seed=2**62)),
        ({"seed": -1}, "sampling", Sampling(seed=-1)),
        ({"presence_penalty": -2}, "sampling", Sampling(presence_penalty=-2)),
        ({"frequency_penalty": 1.5}, "sampling", Sampling(frequency_penalty=1.5)),
        ({"logit_bias": {"7": -100}}, "sampling", Sampling(logit_bias={7: -100.0})),
        ({"top_k": 40}, "sampling", Sampling(extra={"top_k": 40})),
        ({"min_p": 0.1}, "sampling", Sampling(extra={"min_p": 0.1})),
        ({"repetition_penalty": 1.1}, "sampling", Sampling(extra={"repetition_penalty": 1.1})),
        ({"ignore_eos": True}, "sampling", Sampling(extra={"ignore_eos": True})),
        ({"stop_token_ids": [2]}, "sampling", Sampling(extra={"stop_token_ids": [2]})),
        ({"stop": "END"}, "stop", ("END",)),
        ({"stop": ["a", "b", "c", "d"]}, "stop", ("a", "b", "c", "d")),
        ({"user": "u-1"}, "user", "u-1"),
    ],
)
def test_a_good_value_arrives(parameters, path, value):
    assert getattr(parsed(**parameters), path) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""), ("model", 5), ("model", None), ("model", "m" * 201), ("model", "m\0"),
        ("stream", "yes"), ("stream", 1), ("max_tokens", 0), ("max_tokens", 1.5),
        ("max_tokens", True), ("max_tokens", 2**31), ("max_completion_tokens", -1),
        ("min_tokens", -1), ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"),
        ("temperature", True), ("top_p", 1.1), ("top_p", -1), ("seed", 1.0), ("seed", 2**63),
        ("seed", True), ("stop", ""), ("stop", [""]), ("stop", list("abcde")), ("stop", 0),
        ("stop", False), ("stop", {}), ("stop", [1]), ("presence_penalty", 2.5),
        ("frequency_penalty", "x"), ("logit_bias", []), ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": None}),
        ("user", 5), ("user", "u" * 129), ("top_k", -2), ("min_p", 2), ("repetition_penalty", 0),
        ("ignore_eos", 1), ("stop_token_ids", 5), ("stop_token_ids", [-1]), ("messages", None),
        ("messages", []), ("messages", "Hello"), ("stream_options", []),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(name, value):
    with pytest.raises(BadParameter) as caught:
        parsed(**{name: value})
    assert not isinstance(caught.value, NotSupported)
    assert caught.value.param == name
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("n", True), ("n", 0), ("logprobs", True), ("logprobs", 0), ("top_logprobs", 1),
        ("top_logprobs", False), ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
        ("modalities", ["text", "audio"]), ("audio", {}), ("prediction", {}),
        ("reasoning_effort", "low"), ("verbosity", "high"), ("web_search_options", {}),
        ("service_tier", "flex"), ("store", True), ("best_of", 2), ("made_up", None),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(name, value):
    with pytest.raises(NotSupported) as caught:
        parsed(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hello", "messages[1]"),
        ({"role": "tool", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": "The moon"}, "messages"),
    ],
)
def test_a_bad_message_is_named(message, param):
    with pytest.raises(BadParameter) as caught:
        parsed(messages=[{"role": "user", "content": "Hello"}, message])
    assert caught.value.param == param


def test_messages_become_plain_text():
    parts = [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts"}]
    request = parsed(
        messages=[
            {"role": "developer", "content": "Be brief.", "name": "d"},
            {"role": "assistant", "content": "Yes?", "refusal": None, "tool_calls": []},
            {"role": "user", "content": parts},
        ]
    )
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Two parts"},
    ]


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_a_body_that_is_no_object(body):
    with pytest.raises(BadParameter):
        parse_chat_request(body)


def test_min_tokens_must_fit():
    with pytest.raises(BadParameter) as caught:
        parsed(max_tokens=4, min_tokens=5)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"else": True}, "stream_options.else"),
    ],
)
def test_stream_options_are_named(options, param):
    with pytest.raises(NotSupported) as caught:
        parsed(stream=True, stream_options=options)
    assert caught.value.param == param


def test_stream_options_need_a_stream():
    with pytest.raises(BadParameter) as caught:
        parsed(stream_options={"include_usage": True})
    assert caught.value.param == "stream_options"
