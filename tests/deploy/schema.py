"""Manifests against the schemas of those who read them, strictly: a field they don't know is an error.

(The API server itself drops unknown fields of custom resources in silence.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from tests.deploy.kustomize import Manifest

HERE = Path(__file__).parent / "schemas"
KUBERNETES = ("1.30", "1.34", "1.37")
"""The oldest that the manifests are for (a preStop that sleeps), one between, and the newest known."""


def check(manifest: Manifest) -> None:
    """Raises ``jsonschema.ValidationError``, or ``SchemaNotFoundError`` for a kind nobody knows."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    path = HERE / f"{manifest['kind'].lower()}-{group}-{version}.json"
    if not path.exists():
        for kubernetes in KUBERNETES:
            kubernetes_validate.validate(manifest, kubernetes, strict=True)
        return
    schema = _strict(json.loads(path.read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft7Validator(schema).validate(manifest)


def _strict(schema: Any) -> Any:
    """The same, without room for properties that it does not name."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: {name: _strict(item) for name, item in value.items()}
        if key == "properties"
        else _strict(value)
        for key, value in schema.items()
    }
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    return strict
