"""vLLM, by its OpenAI-compatible server (0.30 and newer; default flags).

Source: vllm/entrypoints/openai, and what was measured with 0.32. Every attempt is a completion of
token ids with ``return_token_ids``; ``X-Request-Id`` names it. No ``stop`` is sent: the gateway
matches stop strings itself, since the engine would look only at its own output.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

from streaming.core.chunks import UNKNOWN_ID, EngineUsage, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.access import Access, ask, call, check_health, optional, within
from streaming.engines.base import (
    Capabilities,
    Figures,
    Generation,
    Message,
    NodeReport,
    TokenStream,
)
from streaming.engines.exposition import Page, Reader, count, share
from streaming.engines.http import (
    EngineClient,
    expected_shape,
    model_name,
    parsed,
    positive,
    text_of,
    token_ids,
)
from streaming.engines.stream import Chunks, events_of, one_token, takes_token_ids

FINISHED = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    # vLLM's own loop detection; clients know only OpenAI's reasons.
    "repetition": "stop",
}

# No character has more tokens than UTF-8 has bytes for it; a token before it is harmless.
LONGEST_CHARACTER = 8

# The first needs --enable-scale-out (403 without), the second VLLM_SERVER_DEV_MODE. An empty list
# of ids makes the second one abort *everything*: it must never be sent.
ABORT_PATHS = ("/inference/v1/abort_requests", "/abort_requests")
ABORT_TIMEOUT = 2.0
# How long an engine without an abort call is not asked again, unless a probe says it came back.
NO_ABORT_FOR = 30.0

_METRICS = Reader(
    "vllm:",
    (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "prompt_tokens_total",
        "generation_tokens_total",
    ),
)


class VLLM:
    """See ``engines.base.Dialect``."""

    name: ClassVar[str] = "vllm"
    unsupported: ClassVar[frozenset[str]] = frozenset()
    keeps_idle_connections: ClassVar[bool] = True

    def __init__(self, client: EngineClient, base_url: str, options: NodeOptions) -> None:
        self._access = Access(client, base_url, options)
        self._learnt: Capabilities | None = None
        self._abort_path = ABORT_PATHS[0]
        self._no_abort_until = 0.0

    async def probe(self, timeout: float) -> NodeReport:
        try:
            async with within(timeout):
                return await self._probe(timeout)
        except BaseException:
            self._learnt = None
            self._no_abort_until = 0.0
            raise

    async def _probe(self, timeout: float) -> NodeReport:
        await check_health(self._access, timeout)
        listed = await call(self._access, "GET", "/v1/models", timeout=timeout)
        with expected_shape():
            models = {
                model_name(model["id"]): positive(model.get("max_model_len"))
                for model in listed["data"]
            }
        if self._learnt is None:
            self._learnt = await self._learn(models, timeout / 3)
        try:
            figures, page = await self._read_metrics(timeout / 3)
        except AttemptFailed:
            # Its figures are worth having; a node that can't tell them can work all the same.
            return NodeReport(models, self._learnt)
        can = replace(
            self._learnt,
            figures=figures.running is not None,
            prefix_caching="True" in _cache_labels(page, "enable_prefix_caching"),
        )
        return NodeReport(models, can, figures)

    async def _learn(self, models: Iterable[str], timeout: float) -> Capabilities:
        model = next(iter(models), None)
        takes_ids = model is None or await takes_token_ids(self, model, timeout)
        # Of an id that cannot exist nothing is aborted, and a GET of the other resets nothing.
        abort = await self.abort([f"probe-{uuid4().hex}"])
        reset = await ask(self._access, "GET", "/reset_prefix_cache", timeout=timeout)
        return Capabilities(takes_ids, abort, reset_cache=reset.status_code == 405)

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        answer = await call(
            self._access,
            "POST",
            "/tokenize",
            {"model": model, "messages": messages, "add_generation_prompt": True},
        )
        with expected_shape():
            return token_ids(answer["tokens"])

    async def tokenize_plain(self, text: str) -> list[int] | None:
        return None  # its tokenizer reads control tokens in any text

    async def count_tokens(self, model: str, text: str) -> int:
        body = {"model": model, "prompt": text}
        answer = await call(self._access, "POST", "/tokenize", body)
        with expected_shape():
            return int(answer["count"])

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        answer = await call(
            self._access,
            "POST",
            "/detokenize",
            {"tokens": list(token_ids[-LONGEST_CHARACTER:])},
        )
        with expected_shape():
            return not text_of(answer["prompt"]).endswith("\ufffd")

    def generate(self, generation: Generation) -> TokenStream:
        headers = {"x-request-id": generation.request_id}
        reader = _EventReader(generation)
        return Chunks(
            self._access, "/v1/completions", _body(generation), headers, reader, generation
        )

    async def figures(self, timeout: float) -> Figures:
        return (await self._read_metrics(timeout))[0]

    async def _read_metrics(self, timeout: float) -> tuple[Figures, Page]:
        asked_at = asyncio.get_running_loop().time()
        told = await optional(self._access, "GET", "/metrics", timeout=timeout)
        with expected_shape():
            page = _METRICS.read(told or b"")
            return _figures(page, asked_at), page

    async def pulse(self, model: str, timeout: float) -> None:
        takes_ids = self._learnt is None or self._learnt.token_ids
        await one_token(self, model, timeout, ids=takes_ids)

    async def reset_cache(self) -> bool:
        told = await optional(self._access, "POST", "/reset_prefix_cache")
        if told is None:
            return False
        answer = parsed(told) if told else {}
        return not (isinstance(answer, dict) and answer.get("success") is False)

    async def abort(self, request_ids: Sequence[str]) -> bool:
        loop = asyncio.get_running_loop()
        if not request_ids:
            return True
        if loop.time() < self._no_abort_until:
            return False
        body = {"request_ids": [f"cmpl-{request_id}-0" for request_id in request_ids]}
        for path in sorted(ABORT_PATHS, key=lambda path: path != self._abort_path):
            try:
                told = await optional(self._access, "POST", path, body, timeout=ABORT_TIMEOUT)
            except RejectedByEngine:
                continue  # no vLLM: what it has there is something else
            if told is not None:
                self._abort_path = path
                return True
        self._no_abort_until = loop.time() + NO_ABORT_FOR
        return False


def _figures(page: Page, asked_at: float) -> Figures:
    blocks = [int(n) for n in _cache_labels(page, "num_gpu_blocks") if n.isdecimal()]
    sizes = [int(n) for n in _cache_labels(page, "block_size") if n.isdecimal()]
    block = max(sizes, default=None)
    return Figures(
        asked_at,
        running=count(page.total("num_requests_running")),
        waiting=count(page.total("num_requests_waiting")),
        kv_usage=share(page.highest("kv_cache_usage_perc")),
        kv_tokens=sum(blocks) * block if blocks and block else None,
        block_tokens=block,
        progress=page.total("prompt_tokens_total", "generation_tokens_total"),
    )


def _cache_labels(page: Page, label: str) -> list[str]:
    """One value an engine: a node may be several behind one address."""
    return [labels[label] for labels in page.labels["cache_config_info"] if label in labels]


class _EventReader:
    """See ``stream.EventReader``."""

    __slots__ = ("_generation", "_seen_first", "_tokens", "finished")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._seen_first = False
        self._tokens = 0
        self.finished = False

    def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> None:
        for event in events_of(payloads):
            choices = event.get("choices")
            usage = event.get("usage")
            if usage:
                _note_usage(self._generation.usage, usage)
            if not choices:
                continue
            choice = choices[0]
            if not self._seen_first:
                self._check_first(event, choice)
            chunks.append(self._chunk(choice, usage))

    def _chunk(self, choice: dict[str, Any], usage: dict[str, Any] | None) -> TokenChunk:
        finish = choice.get("finish_reason")
        if finish is not None:
            if finish not in FINISHED:
                raise AttemptFailed(Cause.ABORTED, f"finish_reason {finish!r}")
            finish = FINISHED[finish]
            self.finished = True
        ids = choice.get("token_ids")
        if ids is not None:
            ids = token_ids(ids)
        else:
            # The usage so far tells the count; without it every event stands for one token.
            produced = usage["completion_tokens"] if usage else self._tokens + 1
            ids = [UNKNOWN_ID] * (produced - self._tokens)
        self._tokens += len(ids)
        return TokenChunk(ids, text_of(choice.get("text")), finish)

    def _check_first(self, event: dict[str, Any], choice: dict[str, Any]) -> None:
        """The engine must be continuing what was sent, with the model that was asked for."""
        self._seen_first = True
        wanted = self._generation
        if event.get("model", wanted.model) != wanted.model:
            raise AttemptFailed(Cause.MISMATCH, f"the node answers as model {event['model']!r}")
        echoed = choice.get("prompt_token_ids")
        if echoed is None:
            return
        wanted.usage.prompt_tokens = len(echoed)
        if not isinstance(wanted.prompt, str) and echoed != list(wanted.prompt):
            raise AttemptFailed(Cause.MISMATCH, "the node echoes other prompt ids than were sent")


def _note_usage(usage: EngineUsage, reported: dict[str, Any]) -> None:
    usage.prompt_tokens = reported.get("prompt_tokens")
    usage.completion_tokens = reported.get("completion_tokens")
    details = reported.get("prompt_tokens_details") or {}
    usage.cached_prompt_tokens = details.get("cached_tokens")


def _body(generation: Generation) -> dict[str, Any]:
    sampling = generation.sampling
    prompt = generation.prompt
    body: dict[str, Any] = {
        "model": generation.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "stream": True,
        # A prompt of text is for a node that tells no ids: the running usage counts its tokens.
        "stream_options": {
            "include_usage": True,
            "continuous_usage_stats": isinstance(prompt, str),
        },
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **sampling.extra,
    }
    # Omitted it would be 16 on this endpoint.
    if generation.max_tokens is not None:
        body["max_tokens"] = generation.max_tokens
    if generation.priority is not None:
        body["priority"] = generation.priority
    if generation.min_tokens:
        body["min_tokens"] = generation.min_tokens
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.presence_penalty:
        body["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        body["frequency_penalty"] = sampling.frequency_penalty
    if bias := corrected_bias(generation):
        body["logit_bias"] = bias
    return body


def corrected_bias(generation: Generation) -> dict[str, float]:
    """The client's logit bias, and what the penalties of the answer so far amount to.

    vLLM counts presence and frequency over the output of its own request only. Bias and penalties
    both act before temperature, so a bias of minus the penalty continues ``frequency`` exactly;
    ``presence`` is right until a token recurs, when the engine counts it a second time. vLLM takes
    at most 1024 biases: the most frequent tokens come first.
    """
    sampling = generation.sampling
    bias = {token: float(value) for token, value in sampling.logit_bias.items()}
    if sampling.has_penalties:
        produced = Counter(generation.produced)
        del produced[UNKNOWN_ID]
        for token, count in produced.most_common(max(0, 1024 - len(bias))):
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            bias[token] = bias.get(token, 0.0) - penalty
    return {str(token): value for token, value in bias.items()}
