"""What a backend may ask of an embed token, and what the token puts into its browser's requests.

Pure: bodies come in as parsed JSON. Everything wrong is a ``BadParameter`` that names it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.core.chat import BadParameter, NotSupported
from streaming.core.levels import VARIANT, Level
from streaming.core.limits import NO_LIMIT, Limit
from streaming.core.origins import origin_of

PREFIX = "ub-embed-"
"""Of the text of embed tokens."""
TOKEN_COOKIE = "unbroken_token"
"""Of first-party pages: HttpOnly, with an embed token."""

DEFAULT_SECONDS = 900
MIN_SECONDS, MAX_SECONDS = 60, 3600
MAX_USER = 128
MAX_MODELS = 100
MAX_SYSTEM = 100_000
"""Characters."""

CAPS = ("max_tokens", "max_completion_tokens")
"""Both names of it that a request may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedOrder:
    """One token as its backend wants it. ``level`` None: that of the key."""

    user: str
    models: tuple[str, ...] = ()
    origin: str = ""
    seconds: int = DEFAULT_SECONDS
    preset: Mapping[str, Any] = field(default_factory=dict)
    limit: Limit = NO_LIMIT
    level: Level | None = None
    variant: str = ""


class Overridden(ValueError):
    """The browser sets what its token has set; ``param`` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def parse_order(body: Any) -> EmbedOrder:
    """The body of ``POST /v1/embed-tokens``. Raises ``BadParameter``, ``NotSupported``."""
    if not isinstance(body, dict):
        raise BadParameter("", "The request body must be a JSON object.")
    _only(
        body, "", {"user", "models", "origin", "expires_in", "preset", "limits", "level", "variant"}
    )
    order = EmbedOrder(
        user=_user(body.get("user")),
        models=_models(body.get("models")),
        origin=_origin(body.get("origin")),
        seconds=_int(body, "expires_in", MIN_SECONDS, MAX_SECONDS) or DEFAULT_SECONDS,
        preset=_preset(body.get("preset")),
        limit=_limit(body.get("limits")),
        level=_level(body.get("level")),
        variant=_variant(body.get("variant")),
    )
    forced = order.preset.get("model")
    if forced and order.models and forced not in order.models:
        raise BadParameter("preset.model", "preset.model must be one of models.")
    return order


def merged(preset: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """``body``, a chat request of the browser, with what ``preset`` says. Raises ``Overridden``.

    A forced model takes the place of any: official clients cannot leave it out. ``max_tokens`` is
    a cap: less may be asked for. Everything else of the preset the browser may not name.
    """
    result = dict(body)
    for name in ("temperature", "top_p"):
        if name in preset:
            if body.get(name) is not None:
                raise Overridden(name, f"{name} is set by the embed token.")
            result[name] = preset[name]
    if "model" in preset:
        result["model"] = preset["model"]
    if "max_tokens" in preset:
        _cap(result, preset["max_tokens"])
    if "system" in preset:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return result  # it will be refused
        for index, message in enumerate(messages):
            role = message.get("role") if isinstance(message, dict) else None
            if role in ("system", "developer"):
                where = f"messages[{index}].role"
                raise Overridden(where, f"{where}: the system prompt is set by the embed token.")
        result["messages"] = [{"role": "system", "content": preset["system"]}, *messages]
    return result


def _cap(body: dict[str, Any], cap: int) -> None:
    asked = [name for name in CAPS if body.get(name) is not None]
    if not asked:
        body["max_tokens"] = cap
    for name in asked:
        value = body[name]
        if isinstance(value, int) and not isinstance(value, bool) and value > cap:
            body[name] = cap


def _only(body: Mapping[str, Any], where: str, known: set[str]) -> None:
    for name in body:
        if name not in known:
            full = f"{where}.{name:.80}" if where else f"{name:.80}"
            raise NotSupported(full, f"Unrecognized request argument supplied: {full}")


def _user(value: Any) -> str:
    user = value.strip() if isinstance(value, str) else ""
    if not user or len(user) > MAX_USER or any(unicodedata.category(c) == "Cc" for c in user):
        raise BadParameter(
            "user",
            f"user must be a string of 1 to {MAX_USER} characters, without control characters:"
            " whom the token is for.",
        )
    return user


def _models(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= MAX_MODELS
        or not all(map(_is_name, value))
    ):
        raise BadParameter(
            "models",
            f"models must be an array of 1 to {MAX_MODELS} names of models; leave it out for all.",
        )
    return tuple(dict.fromkeys(value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200 and "\x00" not in value


def _origin(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadParameter("origin", "origin must be a string: scheme://host[:port].")
    try:
        return origin_of(value)
    except ValueError as exc:
        raise BadParameter("origin", f"origin: {exc}.") from None


def _preset(value: Any) -> dict[str, Any]:
    preset = _object(value, "preset")
    _only(preset, "preset", {"system", "temperature", "top_p", "max_tokens", "model"})
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "system": (_is_system, f"a string of 1 to {MAX_SYSTEM} characters, without NUL"),
        "temperature": (_is_number(2), "a number from 0 to 2"),
        "top_p": (_is_number(1), "a number from 0 to 1"),
        "max_tokens": (_is_int_in(1, 2**31 - 1), "a positive integer"),
        "model": (_is_name, "the name of a model"),
    }
    for name, given in preset.items():
        is_valid, expected = checks[name]
        if given is not None and not is_valid(given):
            raise BadParameter(f"preset.{name}", f"preset.{name} must be {expected}.")
    return {name: given for name, given in preset.items() if given is not None}


def _limit(value: Any) -> Limit:
    limits = _object(value, "limits")
    names = ("requests_per_minute", "tokens_per_minute", "streams_at_once")
    _only(limits, "limits", set(names))
    for name in names:
        if limits.get(name) is not None and not _is_int_in(1, 2**31 - 1)(limits[name]):
            raise BadParameter(f"limits.{name}", f"limits.{name} must be a positive integer.")
    return Limit(*(limits.get(name) for name in names))


def _level(value: Any) -> Level | None:
    if value is None:
        return None
    known = [level.value for level in Level]
    if value not in known:
        raise BadParameter("level", f"level must be one of {', '.join(known)}.")
    return Level(value)


def _variant(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not VARIANT.fullmatch(value):
        raise BadParameter("variant", "variant must be 1 to 32 letters, digits, dots, - or _.")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadParameter(name, f"{name} must be an object.")
    return value


def _int(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is not None and not _is_int_in(low, high)(value):
        raise BadParameter(name, f"{name} must be an integer from {low} to {high}.")
    return value


def _is_int_in(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def _is_number(high: float) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= high
    )


def _is_system(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_SYSTEM and "\x00" not in value
