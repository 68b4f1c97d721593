"""A chat request as a client sent it: parsed, with what is wrong told in the client's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from streaming.core.chat import BadParameter, ChatRequest, NotSupported, parse_chat_request
from streaming.errors import InvalidRequest, UnsupportedParameter

Read = TypeVar("Read")


def read_json(body: bytes) -> Any:
    """Raises ``InvalidRequest``."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON: {exc}") from exc


def read_with(parse: Callable[[Any], Read], value: Any) -> Read:
    """``parse(value)``. Raises ``InvalidRequest`` or ``UnsupportedParameter`` for what it refuses."""
    try:
        return parse(value)
    except NotSupported as exc:
        raise UnsupportedParameter(str(exc), param=exc.param) from exc
    except BadParameter as exc:
        raise InvalidRequest(str(exc), param=exc.param or None) from exc


def read_chat_request(body: bytes) -> ChatRequest:
    """Raises ``InvalidRequest`` or ``UnsupportedParameter``."""
    return read_with(parse_chat_request, read_json(body))
