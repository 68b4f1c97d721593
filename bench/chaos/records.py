"""What a chaos run writes down: one line a stream, one line a fault. Reports are made from these alone.

A run's directory holds ``run.json`` (:class:`Run`), ``streams.jsonl`` (:class:`StreamRecord`),
``faults.jsonl`` (:class:`FaultRecord`), ``engines.jsonl`` (see ``bench.chaos.gauges``) and
``evidence.json`` (what the gateway's database and the engines say, see ``bench.chaos.evidence``). All times are wall clock seconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Mode = Literal["unbroken", "unprotected", "unstreamed"]
"""Streamed by the gateway; streamed from the engine directly; asked without streaming."""
ReaderKind = Literal["plain", "resuming", "acking"]
"""An OpenAI client that only reads; one that comes back with its cursor; one that also acknowledges."""
Transport = Literal["sse", "websocket", "none"]
FaultKind = Literal[
    "node_kill", "node_stop", "node_freeze", "node_reset", "node_slow",
    "gateway_kill", "redis_restart", "postgres_restart", "reader_cut", "proxy_cut",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A silence of one stream: ``seconds`` between two pieces, of which ``beyond`` exceed its pace."""

    at: float
    """When the piece that ended it came."""
    seconds: float
    beyond: float


@dataclass(slots=True, kw_only=True)
class StreamRecord:
    """One question and its answer, as the reader saw it over all its connections."""

    index: int
    mode: Mode
    reader: ReaderKind
    transport: Transport
    session: str = ""
    """The gateway's id of the session; empty where there is none."""
    sent: float
    first: float | None = None
    """The first token."""
    ended: float | None = None
    """The end of the whole answer, or the moment in which it was lost."""
    asked: int
    """Tokens that the answer has when nothing breaks."""
    tokens: int = 0
    """Distinct tokens that came."""
    repeated: int = 0
    """Tokens that came again after a reconnection: replays, which nobody pays for."""
    acked: int = 0
    whole: bool = False
    """Every byte of the right answer came, once, in order, and then its end."""
    fault: str = ""
    """Why it is not whole: the error that the reader saw, or ``wrong bytes``."""
    connections: int = 1
    cuts: int = 0
    """Connections that the harness cut on purpose, at the reader or in the proxy."""
    left: bool = False
    """The reader was told to go away and not to come back: not whole, and nobody's fault."""
    diverged: bool = False
    """Whole by the gateway's log, but not the answer of the undisturbed run: this engine rounds the
    rest of an answer otherwise when it is continued. Real engines only."""
    gaps: list[Gap] = field(default_factory=list)
    """Silences of more than 50 ms beyond the pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """One fault that was really done."""

    kind: FaultKind
    target: str
    """Name of the node, gateway or store; index of the stream for ``reader_cut``."""
    at: float
    until: float
    """When the target worked again (a new process listened, the stopped one went on); ``at`` for cuts."""
    streams: int
    """Readers that were being answered at that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was run: written at the end, so that a directory without it was broken off."""

    seed: int
    name: str
    cluster: str
    """``simulator``, ``llamacpp`` or ``given``."""
    began: float
    ended: float
    pace: float
    """Tokens a second that the engines keep for one stream; 0 where they go as fast as they can."""
    arguments: dict[str, Any]
    """The command line, so that the run can be done again."""
    machine: dict[str, Any]
    """``bench.stacks.machine``."""
    wrong_prefixes: int = 0
    """Continuations that were no beginning of the engine's own answer: simulated engines notice."""


def append(path: Path, records: Iterable[StreamRecord | FaultRecord]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


def streams(directory: Path) -> Iterator[StreamRecord]:
    with (directory / "streams.jsonl").open(encoding="utf-8") as file:
        for line in file:
            values = json.loads(line)
            values["gaps"] = [Gap(**gap) for gap in values["gaps"]]
            yield StreamRecord(**values)


def faults(directory: Path) -> list[FaultRecord]:
    path = directory / "faults.jsonl"
    if not path.exists():
        return []
    return [FaultRecord(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
