"""What the readers' process is told, as JSON, by the one that strikes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.chaos.records import Mode, ReaderKind, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation and what is answered when nothing breaks."""

    messages: list[dict[str, str]]
    max_tokens: int
    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Streams that come in at ``rate`` a second, whatever becomes of those before."""

    directory: str
    gateways: list[str]
    proxies: list[str]
    """The same gateways behind something that cuts each connection after ``proxy_seconds``."""
    nodes: list[str]
    """Engines, for those who go there directly."""
    key: str
    model: str
    questions: list[Question]
    modes: list[Mode]
    readers: list[tuple[ReaderKind, Transport]]
    """Of the protected ones. Streams take modes in turn, and readers in turn."""
    streams: int
    rate: float
    seconds: float
    """After this long no stream begins any more; 0: never mind."""
    seed: int
    pace: float
    cut: float
    """Share of the readers who can come back that lose their connection 1 to 3 times."""
    leave: float
    """Share that goes away for good."""
    proxied: float
    """Share of those who can come back that read through the proxy."""
    proxy_seconds: float
    silence: float
    """Seconds without a byte after which a connection counts as dead."""
    patience: float
    """Seconds without a new token after which a reader gives up: its answer is lost."""
    exact: bool
    """The engines always answer as in ``questions``; else the log is asked when they have not."""

    @classmethod
    def read(cls, values: dict[str, Any]) -> Job:
        values["questions"] = [Question(**question) for question in values["questions"]]
        values["readers"] = [(kind, transport) for kind, transport in values["readers"]]
        return cls(**values)
