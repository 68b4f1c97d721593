"""vLLM's endpoints (0.32)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from .engine import Engine, EngineOptions, Refused, Route
from .generation import Sampling
from .vllm_reply import VllmReply, error_document
from .vocabulary import are_known, encode, spelt_bytes
from .wire import Connection, Request


def _bad(message: str) -> Refused:
    return Refused(400, error_document(400, message))


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise _bad(f"invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise _bad("the body must be an object")
    return body


def _known_ids(engine: Engine, value: object) -> list[int]:
    if engine.options.text_only:
        raise _bad("this model takes text only")
    if not isinstance(value, list) or not value or not are_known(value):
        raise _bad("token ids must be non-negative integers of the vocabulary")
    return value


def _sampling(
    engine: Engine, body: dict[str, Any], prompt: Sequence[int], default: int | None
) -> Sampling:
    room = engine.options.max_model_len - len(prompt)
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    max_tokens = asked if asked is not None else (room if default is None else default)
    if max_tokens < 1:
        raise _bad(f"max_tokens must be at least 1, got {max(0, max_tokens)}.")
    if max_tokens > room:
        raise _bad(
            f"This model's maximum context length is {engine.options.max_model_len} tokens. However, "
            f"you requested {max_tokens} output tokens and your prompt contains {len(prompt)} tokens."
        )
    if body.get("n") not in (None, 1):
        raise _bad("the simulator answers with n=1 only")
    stop = body.get("stop") or ()
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.get("min_tokens") or 0,
        temperature=1.0 if body.get("temperature") is None else body["temperature"],
        seed=uuid.uuid4().int if body.get("seed") is None else body["seed"],
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        ignore_eos=bool(body.get("ignore_eos")),
    )


def _chat_prompt(engine: Engine, body: dict[str, Any]) -> list[int]:
    reused = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if reused is not None:
        return _known_ids(engine, reused)
    messages = body.get("messages")
    if not messages or not all(isinstance(message.get("content"), str) for message in messages):
        raise _bad("messages with text are required")
    add = body.get("add_generation_prompt", True)
    goes_on = body.get("continue_final_message", False)
    if add and goes_on:
        raise _bad("Cannot set both `continue_final_message` and `add_generation_prompt`.")
    return engine.template.render_ids(
        messages, add_generation_prompt=add, continue_final_message=goes_on
    )


async def _generate(
    engine: Engine,
    request: Request,
    connection: Connection,
    body: dict[str, Any],
    prompt_ids: list[int],
    *,
    is_chat: bool,
) -> None:
    model = body.get("model")
    if model not in (None, engine.options.model):
        raise Refused(404, error_document(404, f"The model `{model}` does not exist."))
    if engine.options.text_only:
        body = {**body, "return_token_ids": False}
    if body.get("priority") and not engine.options.priority_scheduling:
        raise _bad("Got priority but priority scheduling is not enabled.")
    sampling = _sampling(engine, body, prompt_ids, None if is_chat else 16)
    name = request.headers.get("x-request-id") or body.get("request_id") or uuid.uuid4().hex
    reply_id = f"chatcmpl-{name}" if is_chat else f"cmpl-{name}"
    await engine.answer(
        request,
        connection,
        prompt_ids=prompt_ids,
        sampling=sampling,
        body=body,
        make_reply=lambda facts: VllmReply(facts, body, reply_id, is_chat=is_chat),
        refuse=lambda text, name: Refused(400, error_document(400, text, name)),
        abort_id=reply_id if is_chat else f"{reply_id}-0",
    )


async def completions(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /v1/completions: the prompt is text (control tokens parsed) or token ids."""
    body = _body(request)
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        ids = encode(prompt, parse_special=True)
    else:
        ids = _known_ids(engine, prompt)
    await _generate(engine, request, connection, body, ids, is_chat=False)


async def chat_completions(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /v1/chat/completions."""
    body = _body(request)
    ids = _chat_prompt(engine, body)
    await _generate(engine, request, connection, body, ids, is_chat=True)


async def tokenize(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /tokenize: a prompt or messages; control tokens are parsed in both."""
    body = _body(request)
    if "messages" in body:
        ids = _chat_prompt(engine, {**body, "kv_transfer_params": None})
    else:
        ids = encode(body.get("prompt", ""), parse_special=True)
    strings = [spelt_bytes([token]).decode("utf-8", "replace") for token in ids]
    connection.reply_json(
        {
            "count": len(ids),
            "max_model_len": engine.options.max_model_len,
            "tokens": ids,
            "token_strs": strings if body.get("return_token_strs") else None,
        }
    )


async def detokenize(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /detokenize: control tokens are spelt out."""
    text = spelt_bytes(_known_ids(engine, _body(request).get("tokens"))).decode("utf-8", "replace")
    connection.reply_json({"prompt": text})


async def models(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /v1/models."""
    name = engine.options.model
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": engine.options.max_model_len,
    }
    connection.reply_json({"object": "list", "data": [card]})


async def version(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /version."""
    connection.reply_json({"version": "0.32.0"})


async def health(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /health: 200 with an empty body, also while frozen or paused."""
    connection.reply(503 if engine.faults.take("health_503") else 200, b"")


async def abort_by_id(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /inference/v1/abort_requests: empty answers, also when nothing has that id."""
    if not engine.options.scale_out:
        message = "Scale-out endpoints are disabled."
        raise Refused(403, error_document(403, message, "PermissionDeniedError"))
    ids = _body(request).get("request_ids")
    if ids is None:
        raise _bad("Missing 'request_ids' in request body")
    if ids:
        engine.abort(ids)
    connection.reply(200, b"")


async def abort_requests(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /abort_requests: with no ids it aborts everything, as vLLM's does."""
    body = json.loads(request.body or b"{}")
    aborted = engine.abort(body.get("request_ids") or ())
    connection.reply_json({"status": "aborted", "aborted": aborted})


async def pause(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /pause: `mode=keep` freezes running streams, `abort` (the default) ends them."""
    engine.can_generate.clear()
    if request.query.get("mode", "abort") == "abort":
        engine.abort(())
    connection.reply_json({"status": "paused"})


async def resume(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /resume."""
    engine.can_generate.set()
    connection.reply_json({"status": "resumed"})


async def is_paused(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /is_paused."""
    connection.reply_json({"is_paused": not engine.can_generate.is_set()})


async def reset_prefix_cache(engine: Engine, request: Request, connection: Connection) -> None:
    """POST /reset_prefix_cache: refused while requests run, unless told otherwise."""
    success = not engine.streams or request.query.get("reset_running_requests") == "true"
    if success:
        engine.reset_cache()
    connection.reply_json({"success": success})


async def metrics(engine: Engine, request: Request, connection: Connection) -> None:
    """GET /metrics."""
    if not engine.options.metrics:
        raise Refused(404, NOT_FOUND)
    values = {
        "num_requests_running": ("gauge", len(engine.streams)),
        "num_requests_waiting": ("gauge", engine.waiting),
        "kv_cache_usage_perc": ("gauge", engine.kv_usage),
        "prefix_cache_queries_total": ("counter", engine.cache.queries),
        "prefix_cache_hits_total": ("counter", engine.cache.hits),
        "prompt_tokens_total": ("counter", engine.counters["prompt_tokens"]),
        "prompt_tokens_cached_total": ("counter", engine.cache.hits),
        "generation_tokens_total": ("counter", engine.generated_tokens),
        "num_preemptions_total": ("counter", 0),
    }
    label = f'{{engine="0",model_name="{engine.options.model}"}}'
    text = "".join(
        f"# TYPE vllm:{name} {kind}\nvllm:{name}{label} {float(value)}\n"
        for name, (kind, value) in values.items()
    )
    for reason in ("stop", "length"):
        labels = f'{label[:-1]},finished_reason="{reason}"}}'
        text += f"vllm:request_success_total{labels} {float(engine.finish_reasons[reason])}\n"
    options = engine.options
    labels = (
        f'block_size="{options.kv_block}",cache_dtype="auto",'
        f'enable_prefix_caching="{options.prefix_caching}",engine="0",'
        f'num_gpu_blocks="{options.kv_tokens // options.kv_block}"'
    )
    text += f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
    connection.reply(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")


ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/health"): health,
    ("GET", "/version"): version,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): models,
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
    ("POST", "/inference/v1/abort_requests"): abort_by_id,
}
DEV_ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/abort_requests"): abort_requests,
    ("POST", "/pause"): pause,
    ("POST", "/resume"): resume,
    ("GET", "/is_paused"): is_paused,
    ("POST", "/reset_prefix_cache"): reset_prefix_cache,
}
NOT_FOUND = {"detail": "Not Found"}
_NEED_IDS = frozenset({"/tokenize", "/detokenize"})


def routes(options: EngineOptions) -> dict[tuple[str, str], Route]:
    """Return what a server with these options answers."""
    answered = {**ROUTES, **(DEV_ROUTES if options.dev_mode else {})}
    if options.text_only:
        return {route: answer for route, answer in answered.items() if route[1] not in _NEED_IDS}
    return answered
