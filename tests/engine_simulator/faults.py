"""What can go wrong on demand. Adding a fault is one decorated function, or one name in a set.

A fault that strikes inside a stream is a coroutine `(stream, fault)`, called before the token it
names is sent, with all earlier bytes written. It returns to let the stream go on, or raises Cut.
The other faults are looked up by name where they act (`FaultBook.take`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .stream import Stream


class Cut(Exception):
    """The stream is over: the fault has done to the connection what it does."""


@dataclass(slots=True)
class Fault:
    """One fault as a test ordered it."""

    kind: str
    at_token: int | None = None  # tokens of the whole answer that come before it
    after_tokens: int | None = None  # tokens of this request that come before it
    times: int = 1  # requests left to hit; -1 for ever
    match: str | None = None  # only requests whose prompt text contains this
    arg: Any = None
    retry_after: float | None = None

    def is_for(self, prompt: str) -> bool:
        """Say whether it is meant for a request with this prompt text."""
        return self.match == PULSE if prompt == PULSE else (self.match or "") in prompt

    def strikes_at(self, index: int) -> int:
        """Return how many tokens a request that starts at answer token `index` gets first."""
        if self.at_token is not None:
            return self.at_token - index
        return self.after_tokens or 0


IN_STREAM: dict[str, Callable[[Stream, Fault], Awaitable[None]]] = {}
# Before the first byte, or for the whole length of a request.
BEFORE_STREAM = frozenset({"status", "freeze_first", "wrong_ids_echo", "wrong_model"})
# `zombie`: it goes on generating when its client has gone, until aborted by id or finished.
# `kv_leak`: its KV-cache blocks stay occupied when it has ended, until a reset or eviction.
THROUGHOUT = frozenset({"slow", "jitter", "end_after_seconds", "late_usage", "zombie", "kv_leak"})
# Of the node rather than of a request: last until cleared. `sigterm_silent`: a SIGTERM closes the
# listener only; open streams stay open, without a byte. `slow_engine`: each token of each stream is
# `arg` seconds late. `reset_connections` breaks all that there are at that moment, and is over.
OF_THE_NODE = frozenset(
    {
        *("health_503", "refuse", "freeze_engine", "sigterm_silent"),
        *("slow_engine", "reset_connections"),
    }
)
# The prompt text of a pulse, which faults strike only if they name it in `match`.
PULSE = "<pulse>"


def parse_fault(spec: dict[str, Any]) -> Fault:
    """Build a fault from the control endpoint's JSON. Raises ValueError or TypeError."""
    fault = Fault(**{"times": -1 if spec.get("kind") in OF_THE_NODE else 1, **spec})
    if fault.kind not in BEFORE_STREAM | THROUGHOUT | OF_THE_NODE | IN_STREAM.keys():
        raise ValueError(f"unknown fault {fault.kind!r}")
    return fault


class FaultBook:
    """The faults ordered and not yet spent."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.struck = 0

    def __repr__(self) -> str:
        return f"<FaultBook {[(fault.kind, fault.times) for fault in self._faults]}>"

    def add(self, fault: Fault) -> None:
        """Order a fault, besides those ordered before."""
        self._faults.append(fault)

    def clear(self) -> None:
        """Forget all faults, for streams already running too."""
        for fault in self._faults:
            fault.times = 0
        self._faults.clear()

    def spend(self, fault: Fault) -> bool:
        """Use a fault once; say whether it was still to be used."""
        if fault.times == 0:
            return False
        if fault.times > 0:
            fault.times -= 1
        self.struck += 1
        return True

    def take(self, kind: str, prompt: str = "") -> Fault | None:
        """Use a fault of this kind, if one is ordered for this prompt."""
        for fault in self._faults:
            if fault.kind == kind and fault.is_for(prompt) and self.spend(fault):
                return fault
        return None

    def for_stream(self, prompt: str, index: int) -> list[Fault]:
        """Return the faults that may strike inside a request, the earliest first.

        Asked once, when a request begins to send: a later order does not reach it.
        """
        chosen = [
            fault
            for fault in self._faults
            if fault.kind in IN_STREAM
            and fault.times
            and fault.is_for(prompt)
            and fault.strikes_at(index) >= 0
        ]
        return sorted(chosen, key=lambda fault: fault.strikes_at(index))


def in_stream(
    function: Callable[[Stream, Fault], Awaitable[None]],
) -> Callable[[Stream, Fault], Awaitable[None]]:
    """Register a fault under its function's name."""
    IN_STREAM[function.__name__] = function
    return function


@in_stream
async def sigkill(stream: Stream, fault: Fault) -> None:
    """Die at once, when the client's kernel has all that was sent."""
    await stream.connection.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@in_stream
async def sigstop(stream: Stream, fault: Fault) -> None:
    """Freeze the whole process until it gets SIGCONT."""
    await stream.connection.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


@in_stream
async def reset(stream: Stream, fault: Fault) -> None:
    """Break the connection with RST."""
    await stream.connection.flush()
    stream.connection.reset()
    raise Cut


@in_stream
async def close(stream: Stream, fault: Fault) -> None:
    """Close the connection with FIN, without the chunk that ends a body."""
    stream.connection.close()
    raise Cut


@in_stream
async def truncated(stream: Stream, fault: Fault) -> None:
    """End the body as HTTP wants it, without a finish."""
    stream.end()
    raise Cut


@in_stream
async def half_event(stream: Stream, fault: Fault) -> None:
    """End the body, as HTTP wants it, in the middle of an event."""
    event = stream.next_event()
    stream.send(event[: len(event) // 2])
    stream.end()
    raise Cut


@in_stream
async def half_event_reset(stream: Stream, fault: Fault) -> None:
    """Send half of an event in half of a chunk, then break the connection with RST."""
    event = stream.next_event()
    stream.start()
    stream.connection.transport.write(b"%x\r\n%b" % (len(event), event[: len(event) // 2]))
    await reset(stream, fault)


@in_stream
async def error_done(stream: Stream, fault: Fault) -> None:
    """Report an engine error in an event, as the dialect does (vLLM then says [DONE])."""
    _end_with(stream, stream.reply.error(500, "EngineCore encountered an issue."))


@in_stream
async def error_4xx(stream: Stream, fault: Fault) -> None:
    """Report in an event that the request was wrong."""
    _end_with(stream, stream.reply.error(400, "Found while the engine looked at the request."))


@in_stream
async def abort_finish(stream: Stream, fault: Fault) -> None:
    """End as if someone had aborted the request in the engine."""
    _end_with(stream, stream.reply.aborted())


@in_stream
async def malformed(stream: Stream, fault: Fault) -> None:
    """Send a whole event that is not JSON, then go on to an ordinary end of the body."""
    event = stream.next_event().rstrip(b"\n")
    _end_with(stream, event[: len(event) * 2 // 3] + b"\n\n")


@in_stream
async def freeze(stream: Stream, fault: Fault) -> None:
    """Fall silent with the connection open, for `arg` seconds (then end as `close`) or for ever."""
    if fault.arg is None:
        await asyncio.Event().wait()
    await asyncio.sleep(float(fault.arg))
    await close(stream, fault)


@in_stream
async def late_tokens(stream: Stream, fault: Fault) -> None:
    """Fall silent for `arg` seconds, then go on as if nothing had been."""
    await asyncio.sleep(float(fault.arg))
    stream.pace.shift(float(fault.arg))


def _end_with(stream: Stream, data: bytes) -> None:
    stream.send(data)
    stream.end()
    raise Cut
