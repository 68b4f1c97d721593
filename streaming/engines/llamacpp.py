"""llama.cpp's server, by its native ``/completion`` endpoint.

Source: tools/server of b11434, and what was measured. Streamed events carry one token id each and
are withheld while the text ends inside a character, so the ids of all but the last token of such a
character are missing; ``tokens_predicted`` tells how many. The hole is filled by tokenising the
piece, and accepted only if the count and the last id fit.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from streaming.core.chunks import UNKNOWN_ID, TokenChunk
from streaming.core.failures import AttemptFailed, Cause
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
from streaming.engines.exposition import Reader, count
from streaming.engines.http import (
    EngineClient,
    expected_shape,
    model_name,
    parsed,
    positive,
    text_of,
    token_ids,
)
from streaming.engines.stream import Chunks, Rest, events_of, one_token, takes_token_ids

FINISHED = {"eos": "stop", "word": "stop", "limit": "length"}
EXTRAS = {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"}
PIECES_REMEMBERED = 4096
ERASE_TIMEOUT = 5.0

# An idle connection keeps one of its threads, and older builds have a fixed number of them: what is
# left of one burst would let nobody in for seconds. And after a stream it closes the connection
# without having said so, and a request that was sent on it in that moment would be lost.
_HEADERS = {"connection": "close"}

_METRICS = Reader(
    "llamacpp:",
    (
        "requests_processing",
        "requests_deferred",
        "prompt_tokens_total",
        "tokens_predicted_total",
        "n_decode_total",
    ),
)
# The counts of tokens move when a prompt or an answer is done, that of decodes with every token.
_PROGRESS = ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total")


class LlamaCpp:
    """See ``engines.base.Dialect``."""

    name: ClassVar[str] = "llamacpp"
    unsupported: ClassVar[frozenset[str]] = frozenset({"min_tokens", "stop_token_ids"})
    keeps_idle_connections: ClassVar[bool] = False

    def __init__(self, client: EngineClient, base_url: str, options: NodeOptions) -> None:
        self._access = Access(client, base_url, options, always=_HEADERS)
        self._keeps_prompts = options.prompt_cache == "on"
        self._learnt: Capabilities | None = None
        self._slots: int | None = None
        # The ids of pieces that spanned several tokens; emoji and CJK repeat.
        self._pieces: OrderedDict[str, list[int]] = OrderedDict()

    async def probe(self, timeout: float) -> NodeReport:
        try:
            async with within(timeout):
                return await self._probe(timeout)
        except BaseException:
            self._learnt = None
            raise

    async def _probe(self, timeout: float) -> NodeReport:
        await check_health(self._access, timeout)
        listed = await call(self._access, "GET", "/v1/models", timeout=timeout)
        props = await call(self._access, "GET", "/props", timeout=timeout)
        with expected_shape():
            context = positive(props.get("default_generation_settings", {}).get("n_ctx"))
            models = {model_name(model["id"]): context for model in listed["data"]}
            self._slots = slots = positive(props.get("total_slots"))
        if self._learnt is None:
            self._learnt = await self._learn(models, timeout / 3)
        try:
            figures = await self.figures(timeout / 3)
        except AttemptFailed:
            # Its figures are worth having; a node that can't tell them can work all the same.
            return NodeReport(models, self._learnt, slots=slots)
        can = replace(self._learnt, figures=figures.running is not None)
        return NodeReport(models, can, figures, slots)

    async def _learn(self, models: Iterable[str], timeout: float) -> Capabilities:
        model = next(iter(models), None)
        takes_ids = model is None or await takes_token_ids(self, model, timeout)
        # 501 comes before the action is looked at, 400 after: nothing is erased.
        answer = await ask(self._access, "POST", "/slots/0?action=probe", timeout=timeout)
        return Capabilities(
            takes_ids,
            prefix_caching=self._keeps_prompts,
            reset_cache=answer.status_code == 400,
        )

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        rendered = await call(self._access, "POST", "/apply-template", {"messages": messages})
        with expected_shape():
            prompt = rendered["prompt"]
        return await self._tokenize(prompt, control_tokens=True)

    async def tokenize_plain(self, text: str) -> list[int] | None:
        return await self._tokenize(text, control_tokens=False)

    async def _tokenize(self, text: str, *, control_tokens: bool) -> list[int]:
        answer = await call(
            self._access,
            "POST",
            "/tokenize",
            {"content": text, "add_special": control_tokens, "parse_special": control_tokens},
        )
        with expected_shape():
            return token_ids(answer["tokens"])

    async def count_tokens(self, model: str, text: str) -> int:
        return len(await self._tokenize(text, control_tokens=True))

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        return True  # no event comes out inside a character, and each has one token

    def generate(self, generation: Generation) -> TokenStream:
        reader = _EventReader(generation, self._all_ids)
        return Chunks(self._access, "/completion", _body(generation), {}, reader, generation)

    async def _all_ids(self, text: str, ids: list[int], count: int) -> list[int]:
        """The ids of the ``count`` tokens behind ``text``, of which the engine told ``ids``."""
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
        asked_at = asyncio.get_running_loop().time()
        figures = Figures(asked_at)
        page = await optional(self._access, "GET", "/metrics", timeout=timeout)
        with expected_shape():
            if page is not None:
                samples = _METRICS.read(page)
                figures = Figures(
                    asked_at,
                    running=count(samples.total("requests_processing")),
                    waiting=count(samples.total("requests_deferred")),
                    progress=samples.total(*_PROGRESS),
                )
        slots = await optional(self._access, "GET", "/slots", timeout=timeout)
        if slots is None:
            return figures
        with expected_shape():
            return _with_slots(figures, parsed(slots), self._slots or 0)

    async def pulse(self, model: str, timeout: float) -> None:
        takes_ids = self._learnt is None or self._learnt.token_ids
        await one_token(self, model, timeout, ids=takes_ids)

    async def reset_cache(self) -> bool:
        """Erases slot by slot. The engine keeps the call for a busy one waiting until it is not."""
        slots = await optional(self._access, "GET", "/slots", timeout=ERASE_TIMEOUT)
        if slots is None:
            props = await call(self._access, "GET", "/props")
            with expected_shape():
                numbers = list(range(int(props["total_slots"])))
        else:
            with expected_shape():
                numbers = [int(slot["id"]) for slot in parsed(slots)]
        for number in numbers:
            path = f"/slots/{number}?action=erase"
            try:
                told = await optional(self._access, "POST", path, timeout=ERASE_TIMEOUT)
            except AttemptFailed as exc:
                if exc.cause is Cause.STALLED:
                    return False
                raise
            if told is None:
                return False
        return True

    async def abort(self, request_ids: Sequence[str]) -> bool:
        return not request_ids  # only the end of its connection aborts a request


def _with_slots(figures: Figures, slots: list[dict[str, Any]], total: int) -> Figures:
    """Occupied is what requests hold that run: what an idle slot keeps, a new one may take.

    With ``--kv-unified`` all slots share one cache, of which each says the whole as its own.
    """
    room = max((slot["n_ctx"] for slot in slots), default=0) * max(total, len(slots))
    busy = [slot for slot in slots if slot.get("is_processing")]
    held = sum(slot.get("n_prompt_tokens", 0) + _decoded(slot) for slot in busy)
    return replace(
        figures,
        running=len(busy) if figures.running is None else figures.running,
        kv_usage=min(1.0, held / room) if room else None,
        kv_tokens=room or None,
        block_tokens=1,
    )


def _decoded(slot: dict[str, Any]) -> int:
    following = slot.get("next_token") or {}
    # A list in current builds, an object in older ones.
    latest = following[0] if isinstance(following, list) else following
    return int(latest.get("n_decoded", 0))


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

    def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> Rest | None:
        events = events_of(payloads)
        for event in events:
            told = token_ids(event.get("tokens") or [])
            if event["tokens_predicted"] - self._predicted != len(told):
                return partial(self._read_on, chain((event,), events), chunks)
            chunks.append(self._chunk(event, told))
        return None

    async def _read_on(self, events: Iterable[dict[str, Any]], chunks: list[TokenChunk]) -> None:
        """``read``, where ids are missing."""
        for event in events:
            told = token_ids(event.get("tokens") or [])
            count = event["tokens_predicted"] - self._predicted
            if count != len(told):
                told = await self._all_ids(text_of(event["content"]), told, count)
            chunks.append(self._chunk(event, told))

    def _chunk(self, event: dict[str, Any], ids: list[int]) -> TokenChunk:
        self._predicted = event["tokens_predicted"]
        text = text_of(event["content"])
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
