"""The engine behind the endpoints: what runs, what waits, what is cached, what was asked."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .faults import PULSE, FaultBook
from .generation import Generation, Sampling, SeamFlaw
from .model import WrongPrefix
from .stream import Reply, Stream
from .templates import TEMPLATES, Template
from .vocabulary import spelt_bytes
from .wire import Connection, Request

_RECORDS = 50
_CACHED_BLOCKS = 100_000
_RECORDED_HEADERS = ("host", "traceparent", "idempotency-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the command line decides."""

    dialect: str = "vllm"
    model: str = "sim-model"
    template: str = "chatml"
    pace: float = 0.0  # tokens a second and stream; 0 is as fast as it goes
    ttft_ms: float = 0.0
    prefill_us_per_token: float = 0.0
    max_model_len: int = 8192
    slots: int = 4096
    kv_blocks: int = 0  # of the KV-cache; 0: as many as no test fills by accident
    text_only: bool = False
    prefix_caching: bool = True
    metrics: bool = True
    slots_endpoint: bool = True  # llama.cpp's /slots
    scale_out: bool = False  # vLLM's abort by id
    priority_scheduling: bool = False  # vLLM's --scheduling-policy priority
    dev_mode: bool = False  # vLLM's calls for developers, an abort of another kind among them
    slot_save_path: str = ""  # without one llama.cpp erases no slot
    api_key: str = ""
    sse_keep_alive: float = 0.0  # seconds of silence after which a stream gets a comment
    tls_cert: str = ""  # PEM files: with these it speaks HTTPS
    tls_key: str = ""
    client_ca: str = ""  # who signs the certificates that clients must then have

    @property
    def kv_block(self) -> int:
        """Tokens of one block of the KV-cache."""
        return 16 if self.dialect == "vllm" else 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV-cache holds."""
        if self.dialect != "vllm":
            return self.slots * self.max_model_len
        return self.kv_blocks * self.kv_block or 64 * self.max_model_len


class Refused(Exception):
    """The request is answered with an HTTP error."""

    def __init__(
        self, status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, document)
        self.status = status
        self.document = document
        self.headers = headers


@dataclass(frozen=True, slots=True)
class ReplyFacts:
    """What a dialect needs to know of a request to word its reply."""

    generation: Generation
    cached_tokens: int
    model: str
    echoed_ids: Sequence[int]


class PrefixCache:
    """Remembers which beginnings of prompts were seen, in blocks, the latest ones."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._seen: OrderedDict[int, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def _keys(self, ids: Sequence[int]) -> list[int]:
        keys = []
        key = 0
        for at in range(0, len(ids) - self._block + 1, self._block):
            key = hash((key, *ids[at : at + self._block]))
            keys.append(key)
        return keys

    def lookup(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens are cached (never all), and remember the prompt."""
        keys = self._keys(ids)
        known = 0
        while known < len(keys) and keys[known] in self._seen:
            known += 1
        for key in keys:
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > _CACHED_BLOCKS:
            self._seen.popitem(last=False)
        cached = min(known * self._block, max(0, len(ids) - 1))
        self.queries += len(ids)
        self.hits += cached
        return cached

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()


class Engine:
    """State shared by all requests of one simulator."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.template: Template = TEMPLATES[options.template]
        self.is_vllm = options.dialect == "vllm"
        self.interval = 1 / options.pace if options.pace else 0.0
        self.faults = FaultBook()
        self.streams: set[Stream] = set()
        self.waiting = 0
        self.cache = PrefixCache(options.kv_block)
        # What the KV-cache still holds of ended requests, by `kv_leak`: tokens of each.
        self.leaked: deque[int] = deque()
        self.counters: Counter[str] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.records: deque[dict[str, Any]] = deque(maxlen=_RECORDS)
        self.worst_lag = 0.0
        self.slowness = 0.0  # seconds by which each token is late, by `slow_engine`
        self.can_generate = asyncio.Event()
        self.can_generate.set()
        self._slots = asyncio.Semaphore(options.slots)

    def __repr__(self) -> str:
        return (
            f"<Engine {self.options.dialect} [{len(self.streams)} running, {self.waiting} waiting]>"
        )

    @property
    def running(self) -> int:
        """Requests that run, pulses left out."""
        return sum(stream.prompt_text != PULSE for stream in self.streams)

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, those of running requests included."""
        running = sum(stream.generation.produced for stream in self.streams)
        return self.counters["generated"] + running

    @property
    def kv_usage(self) -> float:
        """The share of the KV-cache that requests hold, running or leaked, in whole blocks."""
        block = self.options.kv_block
        held = sum(-(-n // block) for n in [*(s.held_tokens for s in self.streams), *self.leaked])
        return min(1.0, held * block / self.options.kv_tokens)

    async def while_paused(self) -> None:
        """Wait while the engine is paused or frozen."""
        if not self.can_generate.is_set():
            await self.can_generate.wait()

    def note_lag(self, seconds: float) -> None:
        """Remember how far behind its schedule the simulator itself was."""
        self.worst_lag = max(self.worst_lag, seconds)

    def reset_cache(self) -> None:
        """Forget what was kept of ended requests."""
        self.cache.clear()
        self.leaked.clear()

    def abort(self, abort_ids: Sequence[str]) -> int:
        """Abort requests by their external id; all of them if none is named, as vLLM does."""
        hit = [s for s in self.streams if not abort_ids or s.abort_id in abort_ids]
        for stream in hit:
            stream.abort()
        return len(hit)

    async def answer(
        self,
        request: Request,
        connection: Connection,
        *,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        body: dict[str, Any],
        make_reply: Callable[[ReplyFacts], Reply],
        refuse: Callable[[str, str], Refused],
        abort_id: str | None = None,
    ) -> None:
        """Answer one request that generates, faults and all."""
        prompt_text = spelt_bytes(prompt_ids).decode("utf-8", "replace")
        # One token of a prompt of one: somebody feels the engine's pulse. Faults of requests are
        # meant for others, and so are the figures that tests compare.
        is_pulse = len(prompt_ids) == sampling.max_tokens == 1
        if is_pulse:
            self.counters["pulses"] += 1
            prompt_text = PULSE
        record = {} if is_pulse else self._record(request, prompt_ids, sampling, body)
        if self.faults.take("freeze_first", prompt_text):
            record["outcome"] = "fault"
            await asyncio.Event().wait()
        status = self.faults.take("status", prompt_text)
        if status:
            record["outcome"] = "fault"
            headers = {"Retry-After": f"{status.retry_after:g}"} if status.retry_after else {}
            error = {"message": "ordered by the test", "type": "ordered", "code": status.arg}
            raise Refused(int(status.arg), {"error": error}, headers)
        flaw = SeamFlaw.PROMPT_LEAK if self.is_vllm else SeamFlaw.REPLACEMENT
        try:
            generation = Generation(prompt_ids, self.template, sampling, flaw)
        except WrongPrefix as wrong:
            self.counters["wrong_prefixes"] += 1
            record["outcome"] = "wrong_prefix"
            record["wrong"] = str(wrong)
            raise refuse(f"wrong prefix: {wrong}", "wrong_prefix") from wrong
        record["answer_tokens"] = generation.index
        cached = self.cache.lookup(prompt_ids) if self.options.prefix_caching else 0
        wrong_model = self.faults.take("wrong_model", prompt_text)
        wrong_echo = self.faults.take("wrong_ids_echo", prompt_text)
        facts = ReplyFacts(
            generation,
            cached,
            str(wrong_model.arg or "another-model") if wrong_model else self.options.model,
            [*prompt_ids[:-1], 0] if wrong_echo else prompt_ids,
        )
        stream = Stream(
            self,
            connection,
            generation,
            make_reply(facts),
            abort_id=abort_id,
            prompt_text=prompt_text,
        )
        await self._run(stream, bool(body.get("stream")), cached, record)

    async def _run(
        self, stream: Stream, streamed: bool, cached: int, record: dict[str, Any]
    ) -> None:
        """Run a stream in a slot and keep the figures right however it ends."""
        prompt_tokens = len(stream.generation.prompt_ids)
        seconds = (
            self.options.ttft_ms / 1e3
            + self.options.prefill_us_per_token * (prompt_tokens - cached) / 1e6
        )
        self.waiting += 1
        try:
            await self.while_paused()
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.streams.add(stream)
        while self.leaked and self.kv_usage >= 1:
            self.leaked.popleft()  # evicted: running requests come first
        self.counters["prompt_tokens"] += prompt_tokens
        self.counters["max_running"] = max(self.counters["max_running"], self.running)
        try:
            await stream.run(streamed=streamed, prefill_seconds=seconds)
        finally:
            self._slots.release()
            self.streams.discard(stream)
            if self.faults.take("kv_leak", stream.prompt_text):
                self.leaked.append(stream.held_tokens)
            self.counters["generated"] += stream.generation.produced
            if record:
                finished = stream.outcome in ("stop", "length")
                self.counters["finished" if finished else "aborted"] += 1
                self.finish_reasons[stream.outcome] += 1
            record["outcome"] = stream.outcome
            record["produced"] = stream.generation.produced

    def _record(
        self,
        request: Request,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        body: dict[str, Any],
    ) -> dict[str, Any]:
        """Note what was asked, for tests to look at."""
        self.counters["started"] += 1
        prompt = body.get("prompt")
        record = {
            "path": request.path,
            "request_id": request.headers.get("x-request-id"),
            "headers": {
                name: value
                for name, value in request.headers.items()
                if name.startswith("x-") or name in _RECORDED_HEADERS
            },
            "prompt_kind": "messages" if prompt is None else type(prompt).__name__,
            "prompt_tokens": len(prompt_ids),
            "answer_tokens": None,  # of the answer already in the prompt
            "max_tokens": sampling.max_tokens,
            "min_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "seed": body.get("seed"),
            "stop": list(sampling.stop),
            "priority": body.get("priority"),
            "stream": bool(body.get("stream")),
            "parameters": sorted(body),
            "outcome": "running",
            "produced": 0,
        }
        self.records.append(record)
        return record

    def stats(self) -> dict[str, Any]:
        """Return the figures of the control endpoint."""
        names = ("started", "finished", "aborted", "max_running", "wrong_prefixes", "pulses")
        return {
            **{name: self.counters[name] for name in names},
            "faults": self.faults.struck,
            "running": self.running,
            "waiting": self.waiting,
            "generated_tokens": self.generated_tokens,
            "worst_lag_ms": round(self.worst_lag * 1e3, 3),
            "kv_usage": self.kv_usage,
            "outcomes": dict(self.finish_reasons),
            "requests": list(self.records),
        }


Route = Callable[[Engine, Request, Connection], Awaitable[None]]
