"""What every engine dialect offers, and the shapes it is asked and answers with."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from streaming.core.chunks import EngineUsage, Sampling, TokenChunk
from streaming.core.nodes import NodeOptions
from streaming.engines.http import EngineClient
from streaming.engines.sockets import Watch

Message = Mapping[str, str]
Take = Callable[[list[TokenChunk]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One attempt: "this prompt, continued".

    ``prompt``: token ids, or text for nodes that take none, answer so far included.
    ``max_tokens``: None means as much as fits. ``produced``: how often each token id occurs in the
    answer so far, for penalties that an engine counts over its own output only; empty without any.
    ``prompt_cache``: whether the engine may use what it kept of other requests.
    ``priority``: lower is sooner; None where the node does not schedule by it.
    ``request_id`` carries the attempt's number: engines abort by id. ``traceparent``: the context of its
    trace, for engines that trace too; empty where nobody does.
    """

    model: str
    prompt: Sequence[int] | str
    max_tokens: int | None
    min_tokens: int
    sampling: Sampling
    request_id: str
    prompt_cache: bool = True
    priority: int | None = None
    traceparent: str = ""
    produced: Counter[int] = field(default_factory=Counter)
    usage: EngineUsage = field(default_factory=EngineUsage)
    watch: Watch = field(default_factory=Watch)
    """Its connection: ``watch.facts()`` tells at any time how that fares, or how it ended."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine says of its load; None: it does not say.

    ``running`` and ``waiting`` count requests, of every client it has. ``kv_usage`` is the share of
    the KV-cache that is occupied, 0 to 1; ``kv_tokens`` what the whole cache holds and
    ``block_tokens`` what one block of it holds, in tokens. ``progress`` grows while the engine
    works, be it on prompts or on answers. ``asked_at``: loop time at which it was asked.
    """

    asked_at: float
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a probe has learnt that a node can do."""

    token_ids: bool = True
    """It takes and tells token ids; True as long as nothing speaks against it."""
    abort: bool = False
    """It aborts a request by its id."""
    figures: bool = False
    prefix_caching: bool = False
    """It says that it keeps the KV-cache of ended requests for others with the same beginning."""
    reset_cache: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a probe found. ``models``: each model served, with its context in tokens if known.

    ``slots``: how many requests it runs at once; None: it does not say.
    """

    models: dict[str, int | None]
    can: Capabilities = Capabilities()
    figures: Figures | None = None
    slots: int | None = None


class TokenStream(Protocol):
    """What one attempt brings, by ``async for`` or by ``pour``."""

    def __aiter__(self) -> AsyncIterator[list[TokenChunk]]: ...

    def __anext__(self) -> Awaitable[list[TokenChunk]]: ...

    async def pour(self, take: Take) -> bool:
        """Give ``take`` what each read brings, at the moment at which it comes in, while it says
        that it wants more. It runs in the context of who pours, and raises nothing. True: there may
        be more, pour again; False: the stream has ended."""

    async def aclose(self) -> None:
        """Close its connection. Whoever leaves it before its end, or its failure, has to."""


class Dialect(Protocol):
    """One engine's way of speaking HTTP. One object per node; holds no per-request state.

    Every method raises ``AttemptFailed`` or ``RejectedByEngine``.
    """

    name: ClassVar[str]
    unsupported: ClassVar[frozenset[str]]
    """Sampling extras that this engine does not have."""
    keeps_idle_connections: ClassVar[bool]
    """Whether a connection without a request costs the engine nothing worth mentioning."""

    def __init__(self, client: EngineClient, base_url: str, options: NodeOptions) -> None: ...

    async def probe(self, timeout: float) -> NodeReport:
        """Health, models, abilities and load in at most ``timeout`` seconds.

        The first one learns what the node can do, for which it has the engine make one token; it
        is learnt again only after a probe has failed, since the engine may come back as another.
        """

    async def figures(self, timeout: float) -> Figures:
        """Its load alone; what it does not tell is None."""

    async def pulse(self, model: str, timeout: float) -> None:
        """Have it generate one token: the only proof that it is not frozen.

        Without one in ``timeout`` seconds (waiting in the engine's queue included) its connection
        is closed, and ``AttemptFailed`` says ``STALLED``.
        """

    async def reset_cache(self) -> bool:
        """Drop what it keeps of ended requests; False: it does not offer that, or refuses now."""

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        """The token ids of the rendered prompt, the assistant's header included."""

    async def tokenize_plain(self, text: str) -> list[int] | None:
        """The ids of ``text`` with no control tokens read in it; None if the engine can't."""

    async def count_tokens(self, model: str, text: str) -> int:
        """How many tokens a prompt of text has."""

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of these tokens ends with a whole character."""

    def generate(self, generation: Generation) -> TokenStream:
        """Stream the attempt; each item is what one network read brought.

        The last chunk has a finish reason; afterwards it may still read the usage.
        """

    async def abort(self, request_ids: Sequence[str]) -> bool:
        """Ask for these requests to be aborted; False: the engine has no call for that.

        ``request_ids``: as in ``Generation``. Unknown and ended ones do no harm.
        """
