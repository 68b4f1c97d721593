"""A chat request as the gateway understands it: validated, with OpenAI's defaults filled in.

Source: OpenAI's API reference, "Create chat completion". What the gateway does not do yet is
refused by name; a parameter at its default passes, whatever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streaming.core.budget import TokenBudget
from streaming.core.chunks import Sampling
from streaming.core.control_tokens import disarmed

ROLES = ("system", "developer", "user", "assistant")
EXTRAS = ("top_k", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids")


class BadParameter(ValueError):
    """A parameter has a value that cannot be; ``param`` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class NotSupported(BadParameter):
    """A parameter that OpenAI has and this gateway does not (or nobody has)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """``model`` as the client named it; ``messages`` with plain text content, which spells no control
    token (``control_tokens.disarmed``)."""

    model: str
    messages: list[dict[str, str]]
    stream: bool
    include_usage: bool
    budget: TokenBudget
    sampling: Sampling
    stop: tuple[str, ...]
    user: str


# Parameters that pass only with a value that changes nothing.
_ONLY_DEFAULT: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "moderation": (None,),
}
# Parameters that tell the provider something, and change nothing in the answer.
_INFORMATIVE = frozenset(
    {"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
_KNOWN = frozenset(
    {
        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "min_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty",
        "frequency_penalty", "logit_bias", "user", *EXTRAS,
    }
)  # fmt: skip


def parse_chat_request(body: Any) -> ChatRequest:
    """Read the JSON body of a request. Raises ``BadParameter`` or ``NotSupported``."""
    if not isinstance(body, dict):
        raise BadParameter("", "The request body must be a JSON object.")
    for name, value in body.items():
        if name in _ONLY_DEFAULT:
            # The types count too: to Python, True is 1.
            if not any(type(value) is type(d) and value == d for d in _ONLY_DEFAULT[name]):
                raise NotSupported(
                    name, f"This gateway does not support {name}={json.dumps(value)[:80]} yet."
                )
        elif name not in _KNOWN and name not in _INFORMATIVE:
            raise NotSupported(name, f"Unrecognized request argument supplied: {name:.80}")
    stream = _optional(body, "stream", _is_bool, "a boolean", False)
    options = _optional(body, "stream_options", _is_mapping, "an object", {})
    if options and not stream:
        raise BadParameter("stream_options", "stream_options is only allowed when stream is true.")
    for option, value in options.items():
        known = option in ("include_usage", "include_obfuscation")
        if not known or not isinstance(value, bool | None):
            raise NotSupported(
                f"stream_options.{option}", f"Unsupported stream option: {option:.80}"
            )
    return ChatRequest(
        model=_model(body),
        messages=_messages(body.get("messages")),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        budget=_budget(body),
        sampling=_sampling(body),
        stop=_stop(body.get("stop")),
        user=_text(body, "user", 128),
    )


def _model(body: Mapping[str, Any]) -> str:
    model = _text(body, "model", 200)
    if not model:
        raise BadParameter("model", "You must provide a model parameter.")
    return model


def _text(body: Mapping[str, Any], name: str, limit: int) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > limit or "\x00" in value:
        raise BadParameter(
            name, f"{name} must be a string of at most {limit} characters, without NUL."
        )
    return value


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise BadParameter("messages", "messages must be a non-empty array.")
    messages = [_message(index, message) for index, message in enumerate(value)]
    if messages[-1]["role"] == "assistant":
        raise NotSupported(
            "messages",
            "The last message must not be the assistant's: engines disagree on what it means.",
        )
    return messages


def _message(index: int, message: Any) -> dict[str, str]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise BadParameter(where, f"{where} must be an object.")
    role = message.get("role")
    if role not in ROLES:
        raise NotSupported(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}.")
    for name, value in message.items():
        if name not in ("role", "content", "name", "refusal") and value not in (None, []):
            raise NotSupported(
                f"{where}.{name}", f"This gateway does not support {where}.{name:.80} yet."
            )
    # Chat templates know no developer; OpenAI made it the new name of system.
    return {
        "role": "system" if role == "developer" else role,
        "content": disarmed(_content(where, message.get("content"))),
    }


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadParameter(
            f"{where}.content", f"{where}.content must be a string or an array of text parts."
        )
    texts = []
    for index, part in enumerate(content):
        if (
            not isinstance(part, dict)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise NotSupported(
                f"{where}.content[{index}]",
                f"{where}.content[{index}] must be a text part: only text is supported.",
            )
        texts.append(part["text"])
    return "".join(texts)


def _budget(body: Mapping[str, Any]) -> TokenBudget:
    limits = [
        _optional(body, name, _is_int_from(1), "a positive integer", None)
        for name in ("max_completion_tokens", "max_tokens")
    ]
    max_tokens = next((limit for limit in limits if limit is not None), None)
    min_tokens = _optional(body, "min_tokens", _is_int_from(0), "an integer of at least 0", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise BadParameter("min_tokens", "min_tokens must not be greater than max_tokens.")
    return TokenBudget(max_tokens, min_tokens)


def _sampling(body: Mapping[str, Any]) -> Sampling:
    number = "a number from {} to {}"
    return Sampling(
        temperature=_optional(body, "temperature", _is_number(0, 2), number.format(0, 2), 1.0),
        top_p=_optional(body, "top_p", _is_number(0, 1), number.format(0, 1), 1.0),
        seed=_optional(body, "seed", _is_seed, "an integer of at most 63 bits", None),
        presence_penalty=_optional(
            body, "presence_penalty", _is_number(-2, 2), number.format(-2, 2), 0.0
        ),
        frequency_penalty=_optional(
            body, "frequency_penalty", _is_number(-2, 2), number.format(-2, 2), 0.0
        ),
        logit_bias=_logit_bias(body.get("logit_bias")),
        extra=_extras(body),
    )


def _extras(body: Mapping[str, Any]) -> dict[str, Any]:
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "top_k": (_is_int_from(-1), "an integer of at least -1"),
        "min_p": (_is_number(0, 1), "a number from 0 to 1"),
        "repetition_penalty": (_is_number(0.01, 10), "a number from 0.01 to 10"),
        "ignore_eos": (_is_bool, "a boolean"),
        "stop_token_ids": (_is_token_ids, "an array of token ids"),
    }
    values = {name: _optional(body, name, *check, None) for name, check in checks.items()}
    return {name: value for name, value in values.items() if value is not None}


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > 4
        or not all(isinstance(s, str) and s for s in stops)
    ):
        raise BadParameter(
            "stop", "stop must be a string or an array of up to 4 non-empty strings."
        )
    return tuple(stops)


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    wrong = BadParameter("logit_bias", "logit_bias must map token ids to numbers from -100 to 100.")
    if not isinstance(value, dict) or len(value) > 1024:
        raise wrong
    bias = {}
    for token, amount in value.items():
        if not token.isdecimal() or len(token) > 9 or not _is_number(-100, 100)(amount):
            raise wrong
        bias[int(token)] = float(amount)
    return bias


def _optional(
    body: Mapping[str, Any], name: str, is_valid: Callable[[Any], bool], expected: str, default: Any
) -> Any:
    """The value of a parameter; null counts as absent, as OpenAI has it."""
    value = body.get(name)
    if value is None:
        return default
    if not is_valid(value):
        raise BadParameter(name, f"{name} must be {expected}.")
    return value


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    )


def _is_int_from(low: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**31
    )


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(_is_int_from(0)(token) for token in value)
