"""vLLM, by its OpenAI-compatible server (0.30 and newer; default flags).

Source: vllm/entrypoints/openai, and what was measured with 0.32. Every attempt is a completion of
token ids with ``return_token_ids``; ``X-Request-Id`` names it. No ``stop`` is sent: the gateway
matches stop strings itself, since the engine would look only at its own output.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from streaming.core.chunks import UNKNOWN_ID, EngineUsage, TokenChunk
from streaming.core.failures import AttemptFailed, Cause
from streaming.engines.base import Figures, Generation, Message, NodeReport
from streaming.engines.http import (
    EngineClient,
    call,
    check_health,
    expected_shape,
    text_of,
    token_ids,
)
from streaming.engines.stream import chunks_of, event_of

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


class VLLM:
    """See ``engines.base.Dialect``."""

    name: ClassVar[str] = "vllm"
    unsupported: ClassVar[frozenset[str]] = frozenset()
    keeps_idle_connections: ClassVar[bool] = True

    def __init__(self, client: EngineClient, base_url: str) -> None:
        self._client = client
        self._base = base_url

    async def probe(self, timeout: float) -> NodeReport:
        await check_health(self._client, self._base, timeout)
        listed = await call(self._client, "GET", f"{self._base}/v1/models", timeout=timeout)
        return NodeReport({model["id"]: model.get("max_model_len") for model in listed["data"]})

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        answer = await call(
            self._client,
            "POST",
            f"{self._base}/tokenize",
            {"model": model, "messages": messages, "add_generation_prompt": True},
        )
        with expected_shape():
            return token_ids(answer["tokens"])

    async def tokenize_plain(self, text: str) -> list[int] | None:
        return None  # its tokenizer reads control tokens in any text

    async def count_tokens(self, model: str, text: str) -> int:
        body = {"model": model, "prompt": text}
        answer = await call(self._client, "POST", f"{self._base}/tokenize", body)
        with expected_shape():
            return int(answer["count"])

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        answer = await call(
            self._client,
            "POST",
            f"{self._base}/detokenize",
            {"tokens": list(token_ids[-LONGEST_CHARACTER:])},
        )
        with expected_shape():
            return not text_of(answer["prompt"]).endswith("\ufffd")

    def generate(self, generation: Generation) -> AsyncGenerator[list[TokenChunk]]:
        url = f"{self._base}/v1/completions"
        headers = {"x-request-id": generation.request_id}
        reader = _EventReader(generation)
        return chunks_of(self._client, url, _body(generation), headers, reader)

    async def figures(self, timeout: float) -> Figures:
        return Figures(asyncio.get_running_loop().time())

    async def pulse(self, model: str, timeout: float) -> None:
        await check_health(self._client, self._base, timeout)

    async def reset_cache(self) -> bool:
        return False

    async def abort(self, request_ids: Sequence[str]) -> bool:
        return False


class _EventReader:
    """See ``stream.EventReader``."""

    __slots__ = ("_generation", "_seen_first", "_tokens", "finished")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._seen_first = False
        self._tokens = 0
        self.finished = False

    async def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> None:
        for payload in payloads:
            if payload == b"[DONE]":  # proves nothing: it follows errors and aborts too
                continue
            event = event_of(payload)
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
    if sampling.presence_penalty or sampling.frequency_penalty:
        produced = Counter(generation.produced)
        del produced[UNKNOWN_ID]
        for token, count in produced.most_common(max(0, 1024 - len(bias))):
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            bias[token] = bias.get(token, 0.0) - penalty
    return {str(token): value for token, value in bias.items()}
