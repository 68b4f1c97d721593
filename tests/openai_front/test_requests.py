"""What passes, what is refused, and by which name."""

from __future__ import annotations

import httpx
import orjson
import pytest

from tests.durability.reader import question
from tests.engine_simulator.model import expected_answer
from tests.openai_front.conftest import MODEL, Front

ASK = question("Hello", 6)
BODY = {"model": MODEL, "messages": ASK, "temperature": 0}

UNSUPPORTED = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "a", "format": "wav"},
    "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "high",
    "verbosity": "low",
    "web_search_options": {},
    "service_tier": "flex",
    "store": True,
    "best_of": 2,
    "no_such_parameter": 1,
}
DEFAULTS = {
    "n": 1, "logprobs": False, "top_logprobs": None, "response_format": {"type": "text"},
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "modalities": ["text"],
    "audio": None, "prediction": None, "service_tier": "auto", "store": False, "stop": None,
    "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": None, "seed": None, "top_p": 1,
    "max_tokens": None, "user": "somebody", "metadata": {"a": "b"}, "stream": False,
    "stream_options": None, "prompt_cache_key": "k", "safety_identifier": "s",
}  # fmt: skip
INVALID = {
    "temperature": "warm",
    "top_p": 2,
    "max_tokens": 0,
    "max_completion_tokens": -1,
    "seed": 2**70,
    "stop": ["a"] * 5,
    "presence_penalty": 3,
    "logit_bias": {"x": 1},
    "stream": "yes",
    "messages": [],
    "model": "",
    "user": "a\x00b",
}


def refused(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "resumable"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return response.status_code, error["code"], error["param"]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(front: Front, name: str) -> None:
    response = front.post(json={**BODY, name: UNSUPPORTED[name]})
    assert refused(response) == (400, "unsupported_parameter", name)


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_be_is_refused_by_name(front: Front, name: str) -> None:
    response = front.post(json={**BODY, name: INVALID[name]})
    assert refused(response) == (400, "invalid_request", name)


def test_defaults_pass(front: Front) -> None:
    response = front.post(json={**BODY, **DEFAULTS})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == expected_answer(ASK).text


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[1]", b"null", b'{"model": "sim-model"', b"\xff\xfe", b"NaN",
        b'{"model":"sim-model","messages":[{"role":"user","content":"\\ud800"}]}',
        b"[" * 100_000,
    ],
    ids=["empty", "half", "array", "null", "cut", "not-utf8", "nan", "surrogate", "deep"],
)  # fmt: skip
def test_malformed_bodies(front: Front, body: bytes) -> None:
    status, code, _ = refused(front.post(content=body))
    assert (status, code) == (400, "invalid_request")


def test_nothing_is_stored_of_a_refused_request(front: Front) -> None:
    count = "SELECT count(*) FROM streaming_streamsession"
    before = front.stack.sql(count)
    front.post(json={**BODY, "n": 3})
    front.post(content=b"{")
    assert front.stack.sql(count) == before


def test_nul_in_a_prompt_survives(front: Front) -> None:
    messages = question("before\x00after", 6)
    response = front.post(json={**BODY, "messages": messages})
    assert response.json()["choices"][0]["message"]["content"] == expected_answer(messages).text
    ((stored,),) = front.stack.sql(
        "SELECT request FROM streaming_streamsession WHERE id = %s",
        response.headers["x-session-id"],
    )
    assert orjson.loads(bytes(stored))["messages"] == messages


def test_an_engine_that_says_what_no_utf8_can_carry(front: Front) -> None:
    """Its session breaks off, with the reason stored; the others in the same process go on."""
    messages = question("Say [[surrogate@9]]", 30, "plain")
    poisoned = front.post(json={**BODY, "messages": messages}, timeout=20)
    assert poisoned.status_code == 502
    assert poisoned.json()["error"]["code"] == "failover_exhausted"
    assert front.state_of(poisoned.headers["x-session-id"]) == ("suspended", "engine_crash")
    assert front.post(json=BODY).status_code == 200


def test_unknown_model_wrong_method_and_too_large(front: Front) -> None:
    assert refused(front.post(json={**BODY, "model": "other"})) == (404, "model_not_found", "model")
    wrong = httpx.get(front.url + "/v1/chat/completions", headers=front.headers)
    assert refused(wrong)[:2] == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]
    large = front.post(json={**BODY, "messages": question("x" * 300_000, 5)})
    assert refused(large)[:2] == (413, "request_too_large")


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer ub-\xe9"]
)
def test_keys(front: Front, authorization: str) -> None:
    headers = {"authorization": authorization.encode("latin-1")}
    response = httpx.post(front.url + "/v1/chat/completions", headers=headers, json=BODY)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_a_key_in_the_query_is_no_key(front: Front) -> None:
    response = httpx.post(f"{front.url}/v1/chat/completions?api_key={front.key}", json=BODY)
    assert response.status_code == 401
