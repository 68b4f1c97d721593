"""Whatever the document allows, and much that it does not, gets an answer that it describes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from streaming.api import document

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


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_answers_are_as_the_document_says(schema, headers, path, method, mode):
    operation = schema[path][method]

    @seed(7)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(headers=headers, timeout=WAIT)

    ask()
