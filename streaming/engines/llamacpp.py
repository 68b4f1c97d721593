"""llama.cpp's server, by its native ``/completion`` endpoint.

Source: tools/server of b11434, and what was measured. Streamed events carry one token id each and
are withheld while the text ends inside a character, so the ids of all but the last token of such a
character are missing; ``tokens_predicted`` tells how many. The hole is filled by tokenising the
piece, and accepted only if the count and the last id fit.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

from streaming.core.chunks import UNKNOWN_ID, TokenChunk
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
        await check_health(self._client, self._base, timeout)
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

    def generate(self, generation: Generation) -> AsyncGenerator[list[TokenChunk]]:
        url = f"{self._base}/completion"
        reader = _EventReader(generation, self._all_ids)
        return chunks_of(self._client, url, _body(generation), {}, reader)

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

    async def figures(self, timeout: float) -> Figures:
        return Figures(asyncio.get_running_loop().time())

    async def pulse(self, model: str, timeout: float) -> None:
        await check_health(self._client, self._base, timeout)

    async def reset_cache(self) -> bool:
        return False

    async def abort(self, request_ids: Sequence[str]) -> bool:
        return False


class _EventReader:
    """See ``stream.EventReader``. ``all_ids``: of a text, of which the engine told some ids."""

    __slots__ = ("_all_ids", "_generation", "_predicted", "finished")

    def __init__(
        self,
        generation: Generation,
        all_ids: Callable[[str, list[int], int], Awaitable[list[int]]],
    ) -> None:
        self._generation = generation
        self._all_ids = all_ids
        self._predicted = 0
        self.finished = False

    async def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> None:
        for payload in payloads:
            chunks.append(await self._chunk(event_of(payload)))

    async def _chunk(self, event: dict[str, Any]) -> TokenChunk:
        before, self._predicted = self._predicted, event["tokens_predicted"]
        text, told = text_of(event["content"]), token_ids(event.get("tokens") or [])
        ids = await self._all_ids(text, told, self._predicted - before)
        usage = self._generation.usage
        usage.prompt_tokens = event.get("tokens_evaluated")
        if not event.get("stop"):
            return TokenChunk(ids, text, None)
        finish = FINISHED.get(event.get("stop_type", ""))
        if finish is None:
            raise AttemptFailed(Cause.ABORTED, f"stop_type {event.get('stop_type')!r}")
        usage.completion_tokens = self._predicted
        usage.cached_prompt_tokens = event.get("timings", {}).get("cache_n")
        self.finished = True
        return TokenChunk(ids, text, finish)


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
