"""The HTTP API as a document: ``openapi.json``, written by hand, held to the routes by tests."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).parent / "openapi.json"


class Document(NamedTuple):
    """The bytes of the document, and what tells one version of it from another."""

    body: bytes
    etag: str


@lru_cache(maxsize=1)
def document() -> Document:
    """The document as this process serves it."""
    body = PATH.read_bytes()
    return Document(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
