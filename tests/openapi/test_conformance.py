"""Whatever the document allows, and much that it does not, gets an answer that it describes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth

from streaming.api import document
from tests.durability.reader import question

EXAMPLES = 10
WAIT = 60.0
PATHS = orjson.loads(document().body)["paths"]
OPERATIONS = [
    (path, method)
    for path, item in PATHS.items()
    for method in item
    if method in ("get", "post", "delete")
]


@pytest.fixture(scope="module")
def schema(api):
    return schemathesis.openapi.from_url(f"{api.gateway().url}/v1/openapi.json")


@pytest.fixture(scope="module")
def headers(api):
    return {"authorization": f"Bearer {api.api_key(on_disconnect='cancel')}"}


def whole(value: Any) -> Any:
    """JSON Schema takes 7.0 for an integer; the gateway, like OpenAI's API, does not."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: whole(one) for name, one in value.items()}
        case list():
            return [whole(one) for one in value]
    return value


def is_sensible(path: str, body: Any) -> bool:
    """What the document says in words only."""
    if path.endswith("/report"):
        return any(value is not None for value in body.values())
    if path.endswith("/embed-tokens"):
        preset, models = body.get("preset") or {}, body.get("models")
        texts = [body["user"], preset.get("system") or "x"]
        if not all(text.strip() and "\x00" not in text for text in texts):
            return False
        return not (body.get("origin") or (models and preset.get("model") not in (None, *models)))
    if "messages" not in body:
        return True
    limits = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    limit = next((one for one in limits if one is not None), None)
    return (
        body["messages"][-1]["role"] != "assistant"
        and not (body.get("stream_options") and not body.get("stream"))
        and (limit is None or (body.get("min_tokens") or 0) <= limit)
    )


@pytest.fixture(scope="module")
def session_id(api, headers):
    """Of a session that has ended."""
    body = {"model": "sim-model", "messages": question("openapi", 8), "stream": True}
    url = f"{api.gateway().url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=WAIT).headers["x-session-id"]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_answers_are_as_the_document_says(schema, headers, session_id, path, method, mode):
    operation = schema[path][method]
    if mode is GenerationMode.NEGATIVE and path == "/v1/openapi.json":
        return  # it takes nothing that could be wrong

    @seed(7)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = whole(case.body)
            if "messages" in case.body:  # else there is no such model
                case.body |= {"model": "sim-model", "max_tokens": 5, "max_completion_tokens": None}
            assume(is_sensible(path, case.body))
        if "seconds" in (case.query or {}) and mode is GenerationMode.POSITIVE:
            case.query["seconds"] %= 1  # it lasts so long
        if mode is GenerationMode.POSITIVE and "{session_id}" in path:
            case.path_parameters["session_id"] = session_id
            case.headers.pop("X-Unbroken-User", None)  # it is nobody's
        case.call_and_validate(headers=headers, timeout=WAIT, excluded_checks=[ignored_auth])

    ask()


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_nothing_is_open_but_the_document(api, path, method):
    url = api.gateway().url + path.format(session_id=uuid4(), token_id=uuid4())
    for headers in ({}, {"authorization": "Bearer ub-wrong"}, {"authorization": "Basic YTpi"}):
        answer = httpx.request(method, url, headers=headers)
        assert answer.status_code == (200 if path == "/v1/openapi.json" else 401)
