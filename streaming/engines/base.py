"""What every engine dialect offers, and the shapes it is asked and answers with."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from streaming.core.chunks import EngineUsage, Sampling, TokenChunk
from streaming.engines.http import EngineClient

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One attempt: "this prompt, continued".

    ``prompt``: token ids, or text for nodes that take none, answer so far included.
    ``max_tokens``: None means as much as fits. ``produced``: how often each token id occurs in the
    answer so far, for penalties that an engine counts over its own output only.
    ``prompt_cache``: whether the engine may use what it kept of other requests.
    ``request_id`` carries the attempt's number: engines abort by id.
    """

    model: str
    prompt: Sequence[int] | str
    max_tokens: int | None
    min_tokens: int
    sampling: Sampling
    request_id: str
    prompt_cache: bool = True
    produced: Counter[int] = field(default_factory=Counter)
    usage: EngineUsage = field(default_factory=EngineUsage)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a probe found. ``models``: each model served, with its context in tokens if known."""

    models: dict[str, int | None]


class Dialect(Protocol):
    """One engine's way of speaking HTTP. One object per node; holds no per-request state.

    Every method raises ``AttemptFailed`` or ``RejectedByEngine``.
    """

    name: ClassVar[str]
    unsupported: ClassVar[frozenset[str]]
    """Sampling extras that this engine does not have."""
    keeps_idle_connections: ClassVar[bool]
    """Whether a connection without a request costs the engine nothing worth mentioning."""

    def __init__(self, client: EngineClient, base_url: str) -> None: ...

    async def probe(self, timeout: float) -> NodeReport:
        """Health and models in at most ``timeout`` seconds."""

    async def render(self, model: str, messages: Sequence[Message]) -> list[int]:
        """The token ids of the rendered prompt, the assistant's header included."""

    async def tokenize_plain(self, text: str) -> list[int] | None:
        """The ids of ``text`` with no control tokens read in it; None if the engine can't."""

    async def count_tokens(self, model: str, text: str) -> int:
        """How many tokens a prompt of text has."""

    async def ends_whole(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of these tokens ends with a whole character."""

    def generate(self, generation: Generation) -> AsyncGenerator[list[TokenChunk]]:
        """Stream the attempt; each item is what one network read brought.

        The last chunk has a finish reason; afterwards the generator may still read the usage.
        Closing it closes the connection.
        """

    async def abort(self, request_id: str) -> None:
        """Ask for the request to be aborted, where the engine has a call for that."""
