"""The document, the schema and the code name the same messages."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from streaming.consumers.websocket import ChatSocket
from tests.websocket.schema import SCHEMA, documented, documented_events


def fields(definition: dict[str, Any]) -> tuple[set[str], set[str]]:
    names = set(definition["properties"]) - {"type"}
    required = set(definition["required"]) - {"type"}
    return required, names - required


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("side", ["client", "server"])
def test_document_and_schema_agree(side):
    in_schema = {name: fields(message) for name, message in SCHEMA["$defs"][side].items()}
    assert documented(f"{side} message") == in_schema


def test_document_and_schema_agree_on_events():
    in_schema = {
        name: set(event["properties"]) for name, event in SCHEMA["$defs"]["events"].items()
    }
    assert documented_events() == in_schema


def test_the_code_takes_what_is_documented():
    assert set(ChatSocket._handlers) == set(SCHEMA["$defs"]["client"])
