"""llama.cpp's endpoints."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from .engine import Engine, EngineOptions, Refused, Route
from .generation import Sampling
from .llamacpp_reply import ChatReply, CompletionReply, error_document
from .vocabulary import TOKENS, are_known, encode, spelt_bytes
from .wire import Connection, Request

_DEFAULT_TEMPERATURE = 0.8
_NEED_IDS = frozenset({"/tokenize", "/detokenize", "/apply-template"})


def _bad(message: str) -> Refused:
    return Refused(400, error_document(400, message))


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise _bad(f"[json.exception.parse_error.101] {error}") from error
    if not isinstance(body, dict):
        raise _bad("the body must be an object")
    return body


def _prompt_ids(engine: Engine, prompt: object) -> list[int]:
    """Read a prompt: text (control tokens parsed), ids, or a list that mixes both."""
    parts = prompt if isinstance(prompt, list) else [prompt]
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            ids += encode(part, parse_special=True)
        elif isinstance(part, int) and are_known([part]) and not engine.options.text_only:
            ids.append(part)
        else:
            raise _bad("Prompt contains invalid tokens")
    if not ids:
        raise _bad('"prompt" must not be empty')
    return ids


def _sampling(engine: Engine, body: dict[str, Any], prompt: Sequence[int], asked: int) -> Sampling:
    context = engine.options.max_model_len
    if len(prompt) >= context:
        message = f"request ({len(prompt)} tokens) exceeds the available context size ({context}"
        document = error_document(400, f"{message} tokens), try increasing it")
        document["error"]["type"] = "exceed_context_size_error"
        document["error"].update(n_prompt_tokens=len(prompt), n_ctx=context)
        raise Refused(400, document)
    room = context - len(prompt)
    temperature = body.get("temperature")
    seed = body.get("seed")
    return Sampling(
        max_tokens=room if asked < 0 else min(max(asked, 1), room),
        temperature=_DEFAULT_TEMPERATURE if temperature is None else temperature,
        seed=random.getrandbits(32) if seed in (None, -1) else seed,
        stop=tuple(body.get("stop") or ()),
        ignore_eos=bool(body.get("ignore_eos")),
    )


async def _generate(
    engine: Engine,
    request: Request,
    connection: Connection,
    body: dict[str, Any],
    ids: list[int],
    asked: int,
    reply: type[CompletionReply],
) -> None:
    await engine.answer(
        request,
        connection,
        prompt_ids=ids,
        sampling=_sampling(engine, body, ids, asked),
        body=body,
        make_reply=lambda facts: reply(engine, facts, body),
        refuse=lambda text, name: Refused(400, error_document(400, text, name)),
    )


async def completion(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /completion."""
    body = _body(request)
    if "prompt" not in body:
        raise _bad("[json.exception.out_of_range.403] key 'prompt' not found")
    ids = _prompt_ids(engine, body["prompt"])
    asked = body.get("n_predict", body.get("max_tokens", -1))
    await _generate(engine, request, connection, body, ids, asked, CompletionReply)


async def chat_completions(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /v1/chat/completions: a trailing assistant message is continued, asked or not."""
    body = _body(request)
    messages = body.get("messages")
    if not messages:
        raise _bad("'messages' is required")
    goes_on = messages[-1]["role"] == "assistant"
    opened = engine.template.render(messages[:-1] if goes_on else messages)
    ids = encode(opened + (messages[-1]["content"] if goes_on else ""), parse_special=True)
    asked = body.get("max_completion_tokens", body.get("max_tokens", -1))
    await _generate(engine, request, connection, body, ids, asked, ChatReply)


async def apply_template(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /apply-template: the rendered prompt as text."""
    connection.reply_json({"prompt": engine.template.render(_body(request).get("messages") or [])})


async def tokenize(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /tokenize; a piece that is not UTF-8 is given as a list of bytes."""
    body = _body(request)
    ids = encode(body.get("content", ""), parse_special=body.get("parse_special", True))
    if not body.get("with_pieces"):
        connection.reply_json({"tokens": ids})
        return
    connection.reply_json({"tokens": [{"id": token, "piece": _piece(token)} for token in ids]})


def _piece(token: int) -> str | list[int]:
    try:
        return TOKENS[token].decode()
    except UnicodeDecodeError:
        return list(TOKENS[token])


async def detokenize(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /detokenize: control tokens are spelt out."""
    ids = _body(request).get("tokens") or []
    if not are_known(ids):
        raise _bad("invalid tokens")
    connection.reply_json({"content": spelt_bytes(ids).decode("utf-8", "replace")})


async def health(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /health."""
    if engine.faults.take("health_503"):
        raise Refused(503, error_document(503, "Loading model", "unavailable_error"))
    connection.reply_json({"status": "ok"})


async def models(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /v1/models."""
    name = engine.options.model
    card = {
        "id": name,
        "aliases": [name],
        "object": "model",
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {"n_vocab": len(TOKENS), "n_ctx": engine.options.max_model_len},
    }
    connection.reply_json({"object": "list", "data": [card]})


async def props(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /props."""
    options = engine.options
    settings = {
        "params": {"seed": 4294967295, "temperature": _DEFAULT_TEMPERATURE, "n_predict": -1},
        "n_ctx": options.max_model_len,
    }
    connection.reply_json(
        {
            "default_generation_settings": settings,
            "total_slots": options.slots,
            "model_alias": options.model,
            "model_path": options.model,
            "modalities": {"vision": False, "video": False, "audio": False},
            "chat_template": options.template,
            "build_info": "b0-unknown",
        }
    )


def _unsupported(what: str) -> Refused:
    message = f"This server does not support {what}."
    return Refused(501, error_document(501, message, "not_supported_error"))


async def slots(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /slots: the busy ones first, leaked ones among them; idle ones are named up to a few."""
    if not engine.options.slots_endpoint:
        raise _unsupported("slots endpoint")
    if request.query.get("fail_on_no_slot") and len(engine.streams) >= engine.options.slots:
        raise Refused(503, error_document(503, "no slot available", "unavailable_error"))
    context = engine.options.max_model_len
    busy = [
        {
            "id": number,
            "n_ctx": context,
            "speculative": False,
            "is_processing": True,
            "n_prompt_tokens": prompt,
            "next_token": [{"n_decoded": decoded}],
        }
        for number, (prompt, decoded) in enumerate(
            [
                *((tokens, 0) for tokens in engine.leaked),
                *((len(s.generation.prompt_ids), s.generation.produced) for s in engine.streams),
            ]
        )
    ]
    idle = [
        {"id": number, "n_ctx": context, "speculative": False, "is_processing": False}
        for number in range(len(busy), min(engine.options.slots, len(busy) + 8))
    ]
    connection.reply_json(busy + idle)


async def slot_action(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /slots/N: `erase` waits for a busy slot, as the server's task queue does."""
    if not engine.options.slot_save_path:
        raise _unsupported("slots action")
    number = int(request.path.rpartition("/")[2])
    if request.query.get("action") != "erase":
        raise _bad("Invalid action")
    while 0 <= number - len(engine.leaked) < len(engine.streams):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    erased = 0
    if number < len(engine.leaked):
        erased = engine.leaked[number]
        engine.leaked[number] = 0  # the slots after it keep their numbers
    if not any(engine.leaked):
        engine.leaked.clear()
    engine.cache.clear()
    connection.reply_json({"id_slot": number, "n_erased": erased})


async def metrics(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /metrics."""
    if not engine.options.metrics:
        raise _unsupported("metrics endpoint")
    prompt_tokens = engine.counters["prompt_tokens"]
    values = {
        "prompt_tokens_total": ("counter", prompt_tokens - engine.cache.hits),
        "prompt_tokens_cached_total": ("counter", engine.cache.hits),
        "tokens_predicted_total": ("counter", engine.generated_tokens),
        "n_decode_total": ("counter", engine.generated_tokens),
        "requests_processing": ("gauge", len(engine.streams)),
        "requests_deferred": ("gauge", engine.waiting),
    }
    text = "".join(
        f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
        for name, (kind, value) in values.items()
    )
    connection.reply(200, text.encode(), "text/plain; version=0.0.4")


NOT_FOUND = error_document(404, "File Not Found", "not_found_error")
ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/health"): health,
    ("GET", "/v1/models"): models,
    ("GET", "/props"): props,
    ("GET", "/slots"): slots,
    ("GET", "/metrics"): metrics,
    ("POST", "/completion"): completion,
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/apply-template"): apply_template,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
}


def routes(options: EngineOptions) -> dict[tuple[str, str], Route]:
    """Return what a server with these options answers."""
    slot_routes = {("POST", f"/slots/{number}"): slot_action for number in range(options.slots)}
    answered = {**ROUTES, **slot_routes}
    if options.text_only:
        return {route: answer for route, answer in answered.items() if route[1] not in _NEED_IDS}
    return answered
