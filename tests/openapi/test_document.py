"""The document is valid OpenAPI, and names every route of /v1 and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import orjson
import pytest

from streaming.api import PATH, document
from streaming.errors import GatewayError
from streaming.routing import http_urlpatterns

DOCUMENT: dict[str, Any] = orjson.loads(document().body)


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def resolved(ref: str) -> Any:
    node: Any = DOCUMENT
    for part in ref.removeprefix("#/").split("/"):
        node = node[part]
    return node


def test_every_route_is_in_it_and_every_path_is_a_route():
    routes = {}
    for pattern in http_urlpatterns:
        path = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(pattern.pattern))
        if path.startswith("/v1/"):
            consumer = pattern.callback.consumer_class  # type: ignore[attr-defined]
            routes[path] = {method.lower() for method in consumer.methods}
    methods = ("get", "post", "delete", "put", "patch")
    documented = {
        path: {method for method in item if method in methods}
        for path, item in DOCUMENT["paths"].items()
    }
    assert documented == routes


def test_every_reference_leads_somewhere_and_everything_is_used():
    used = set(refs(DOCUMENT))
    for ref in used:
        assert resolved(ref)
    for kind in ("schemas", "parameters", "headers", "responses"):
        for name in DOCUMENT["components"][kind]:
            assert f"#/components/{kind}/{name}" in used


def test_schemas_are_schemas_and_examples_fit_them():
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for item in DOCUMENT["paths"].values():
        for operation in item.values():
            if not isinstance(operation, dict) or "requestBody" not in operation:
                continue
            content = operation["requestBody"]["content"]["application/json"]
            schema = {**content["schema"], "components": DOCUMENT["components"]}
            jsonschema.Draft202012Validator(schema).validate(content["example"])


def statuses(kind: type[GatewayError]) -> set[int]:
    return {kind.http_status}.union(*(statuses(one) for one in kind.__subclasses__()))


def test_every_status_of_an_error_is_in_it():
    documented = {
        int(status)
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
        for status in operation["responses"]
    }
    assert statuses(GatewayError) - {405} <= documented


@pytest.mark.parametrize("old", [True, False])
def test_it_is_served_to_anybody_and_kept_by_caches(api, old):
    url = f"{api.gateway().url}/v1/openapi.json"
    answer = httpx.get(url)
    assert answer.content == PATH.read_bytes()
    assert "max-age" in answer.headers["cache-control"]
    again = httpx.get(url, headers={"if-none-match": '"old"' if old else answer.headers["etag"]})
    assert again.status_code == (200 if old else 304)
    head = httpx.head(url)
    assert (head.status_code, head.content) == (200, b"")
