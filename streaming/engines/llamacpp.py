"""llama.cpp's server, by its native ``/completion`` endpoint.

Source: tools/server of b11434, and what was measured. Streamed events carry one token id each and
are withheld while the text ends inside a character, so the ids of all but the last token of such a
character are missing; ``tokens_predicted`` tells how many. The hole is filled by tokenising the
piece, and accepted only if the count and the last id fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from streaming.core.chunks import UNKNOWN_ID, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.sse import EventTooLong, SSEParser
from streaming.engines.base import Generation, Message, NodeReport
from streaming.engines.http import (
    EngineClient,
    call,
    expected_shape,
    parsed,
    raise_for_error,
    stream_post,
    text_of,
    token_ids,
    translated_errors,
)

FINISHED = {"eos": "stop", "word": "stop", "limit": "length"}
EXTRAS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}
PIECES_REMEMBERED = 4096


class LlamaCpp:
    """See ``engines.base.Dialect``."""

    name: ClassVar[str] = "llamacpp"
    unsupported: ClassVar[frozenset[str]] = frozenset({"min_tokens", "stop_token_ids"})
    # Its server has a thread for each connection, and few threads.
    keeps_idle_connections: ClassVar[bool] = False

    def __init__(self, client: EngineClient, base_url: str) -> None:
        self._client = client
        self._base = base_url
        # The ids of pieces that spanned several tokens; emoji and CJK repeat.
        self._pieces: OrderedDict[str, list[int]] = OrderedDict()

    async def probe(self, timeout: float) -> NodeReport:
        with translated_errors():
            response = await self._client.short.get(f"{self._base}/health", timeout=timeout)
        if response.status_code != 200:
            raise AttemptFailed(Cause.BAD_STATUS, f"/health: HTTP {response.status_code}")
        listed = await call(self._client, "GET", f"{self._base}/v1/models", timeout=timeout)
        props = await call(self._client, "GET", f"{self._base}/props", timeout=timeout)
        context = props.get("default_generation_settings", {}).get("n_ctx")
        return NodeReport({model["id"]: context for model in listed["data"]})

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        rendered = await call(
            self._client, "POST", f"{self._base}/apply-template", {"messages": messages}
        )
        with expected_shape():
            prompt = rendered["prompt"]
        return await self._tokenize(prompt, control_tokens=True)

    async def tokenize_plain(self, text: str) -> list[int] | None:
        return await self._tokenize(text, control_tokens=False)

    async def _tokenize(self, text: str, *, control_tokens: bool) -> list[int]:
        answer = await call(
            self._client,
            "POST",
            f"{self._base}/tokenize",
            {"content": text, "add_special": control_tokens, "parse_special": control_tokens},
        )
        with expected_shape():
            return token_ids(answer["tokens"])

    async def count_tokens(self, model: str, text: str) -> int:
        return len(await self._tokenize(text, control_tokens=True))

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        return True  # no event comes out inside a character, and each has one token

    async def generate(self, generation: Generation) -> AsyncGenerator[list[TokenChunk]]:
        url = f"{self._base}/completion"
        parser = SSEParser()
        finished = False
        predicted = 0
        async with stream_post(self._client, url, _body(generation), {}) as stream:
            with translated_errors():
                async for data in stream:
                    try:
                        payloads = parser.feed(data)
                    except EventTooLong as exc:
                        raise AttemptFailed(Cause.MALFORMED, str(exc)) from exc
                    chunks: list[TokenChunk] = []
                    try:
                        for payload in payloads:
                            event = _event(payload)
                            with expected_shape():
                                chunk, predicted = await self._chunk(event, predicted, generation)
                            finished = finished or chunk.finish_reason is not None
                            chunks.append(chunk)
                    except (AttemptFailed, RejectedByEngine):
                        # Tokens that came together with an error have come all the same.
                        if chunks:
                            yield chunks
                        raise
                    if chunks:
                        yield chunks
        if not finished:
            raise AttemptFailed(Cause.CLOSED, "the stream ended without a stop event")

    async def _chunk(
        self, event: dict[str, Any], before: int, generation: Generation
    ) -> tuple[TokenChunk, int]:
        predicted, text = event["tokens_predicted"], text_of(event["content"])
        ids = await self._all_ids(text, token_ids(event.get("tokens") or []), predicted - before)
        finish = None
        usage = generation.usage
        usage.prompt_tokens = event.get("tokens_evaluated")
        if event.get("stop"):
            finish = FINISHED.get(event.get("stop_type", ""))
            if finish is None:
                raise AttemptFailed(Cause.ABORTED, f"stop_type {event.get('stop_type')!r}")
            usage.completion_tokens = predicted
            usage.cached_prompt_tokens = event.get("timings", {}).get("cache_n")
        return TokenChunk(ids, text, finish), predicted

    async def _all_ids(self, text: str, ids: list[int], count: int) -> list[int]:
        """The ids of the ``count`` tokens behind ``text``, of which the engine told ``ids``."""
        if count == len(ids):
            return ids
        if text:
            known = self._pieces.get(text)
            if known is None:
                known = await self._tokenize(text, control_tokens=False)
                self._pieces[text] = known
                if len(self._pieces) > PIECES_REMEMBERED:
                    self._pieces.popitem(last=False)
            if len(known) == count and known[-len(ids) :] == ids:
                return list(known)
        return [UNKNOWN_ID] * (count - len(ids)) + ids

    async def abort(self, request_id: str) -> None:
        """Closing the connection aborts; there is no call for it."""


def _event(payload: bytes) -> dict[str, Any]:
    """One event. Raises what an error object means."""
    event = parsed(payload)
    if not isinstance(event, dict):
        raise AttemptFailed(Cause.MALFORMED, f"not an event: {payload[:80]!r}")
    if "error" in event:
        raise_for_error(event["error"])
    return event


def _body(generation: Generation) -> dict[str, Any]:
    sampling = generation.sampling
    prompt = generation.prompt
    body: dict[str, Any] = {
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "n_predict": -1 if generation.max_tokens is None else generation.max_tokens,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": generation.prompt_cache,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # The server's own defaults cut the distribution; OpenAI's do not.
        "top_k": 0,
        "min_p": 0.0,
        # Its penalties look back over prompt and answer, so they survive a seam by themselves.
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    for name, value in sampling.extra.items():
        body[EXTRAS.get(name, name)] = value
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = [[token, bias] for token, bias in sampling.logit_bias.items()]
    return body
