"""One generating request: sends its tokens on schedule and lets the ordered faults strike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .faults import IN_STREAM, Cut, Fault
from .generation import Generation
from .model import Piece
from .pace import JitteryPace, Pace
from .wire import Connection

if TYPE_CHECKING:
    from .engine import Engine

_FAR = 1 << 30


class Reply(Protocol):
    """How a dialect puts an answer into words: events of a stream, or one document."""

    headers: Mapping[str, str]
    sends_headers_first: bool  # else they wait for the first event
    closes: bool  # the connection, after a stream, without having said so
    keep_alive: bytes  # a comment

    def opening(self) -> bytes:
        """Return the events before the first token."""

    def event(self, piece: Piece) -> bytes:
        """Return the event of a token; empty if the dialect withholds it."""

    def ending(self, piece: Piece) -> bytes:
        """Return all events from the last token on."""

    def error(self, code: int, message: str) -> bytes:
        """Return the events of an error inside the stream."""

    def aborted(self) -> bytes:
        """Return the events of an abort inside the engine."""

    def document(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the answer of a request that is not streamed."""


class Stream:
    """A request that generates, streamed or not."""

    def __init__(
        self,
        engine: Engine,
        connection: Connection,
        generation: Generation,
        reply: Reply,
        *,
        abort_id: str | None,
        prompt_text: str,
    ) -> None:
        self.engine = engine
        self.connection = connection
        self.generation = generation
        self.reply = reply
        self.abort_id = abort_id
        self.pace = Pace(0.0)
        self.outcome = "running"
        self.prompt_text = prompt_text
        self._started = False
        self._sent = 0
        self._task: asyncio.Task[Any] | None = None
        self._is_aborted = False

    def __repr__(self) -> str:
        return f"<Stream {self.abort_id} [{self.outcome}, {self.generation!r}]>"

    @property
    def held_tokens(self) -> int:
        """Tokens whose attention state it holds."""
        return len(self.generation.prompt_ids) + self.generation.produced

    def abort(self) -> None:
        """End the request from inside the engine, as an abort call does."""
        self._is_aborted = True
        if self._task is not None:
            self._task.cancel()

    async def run(self, *, streamed: bool, prefill_seconds: float) -> None:
        """Generate to the end. A disconnect arrives as CancelledError."""
        self._task = asyncio.current_task()
        assert self._task is not None
        self.outcome = "disconnected"
        try:
            if streamed:
                await self._stream(prefill_seconds)
            else:
                await self._collect(prefill_seconds)
            self.outcome = self.generation.finish_reason or "cut"
        except Cut:
            self.outcome = "fault"
        except asyncio.CancelledError:
            has_client = not self.connection.transport.is_closing()
            if not self._is_aborted and self.engine.faults.take("zombie", self.prompt_text):
                self._task.uncancel()
                await self._haunt()
                return
            if not self._is_aborted or not has_client:
                raise
            self._task.uncancel()
            self.outcome = self.generation.finish_reason = "aborted"
            if streamed:
                self.send(self.reply.aborted())
                self.end()
            else:
                self.connection.reply_json(self.reply.document([]))

    async def _haunt(self) -> None:
        """Generate for nobody."""
        self.outcome = "zombie"
        loop = asyncio.get_running_loop()
        try:
            while self.generation.finish_reason is None:
                await self._until_due(loop)
                self.pace.take(1, loop.time())
                self.generation.advance()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.outcome = "aborted"
            raise

    # What faults use too.

    def start(self) -> None:
        """Send the response's headers, once."""
        if not self._started:
            self._started = True
            self.connection.start_events(self.reply.headers)

    def send(self, data: bytes | bytearray) -> None:
        """Send events."""
        self.start()
        self._sent += 1
        self.connection.send_chunk(data)

    def end(self) -> None:
        """End the body as HTTP wants it."""
        self.start()
        self.connection.end_events()
        if self.reply.closes:
            self.connection.close()

    def next_event(self) -> bytes:
        """Generate until there is an event to show, and return it."""
        event = b""
        while not event:
            event = self._advance()
        return event

    # The two ways of answering.

    async def _stream(self, prefill_seconds: float) -> None:
        if self.reply.sends_headers_first:
            self.start()
        limit = self.engine.faults.take("end_after_seconds", self.prompt_text)
        keep_alive = asyncio.create_task(self._keep_alive(self.engine.options.sse_keep_alive))
        try:
            async with asyncio.timeout(float(limit.arg) if limit else None):
                await self._prefill(prefill_seconds)
                opening = self.reply.opening()
                if opening:
                    self.send(opening)
                await self._send_tokens()
        except TimeoutError:
            pass
        finally:
            keep_alive.cancel()
        self.end()

    async def _keep_alive(self, seconds: float) -> None:
        """Send a comment into every silence, as the part that speaks HTTP does by itself."""
        while seconds:
            sent = self._sent
            await asyncio.sleep(seconds)
            if self._started and self._sent == sent:
                self.send(self.reply.keep_alive)

    async def _send_tokens(self) -> None:
        generation = self.generation
        loop = asyncio.get_running_loop()
        faults = self.engine.faults.for_stream(self.prompt_text, generation.index)
        late = self.engine.faults.take("late_usage", self.prompt_text)
        first = generation.index
        while generation.finish_reason is None:
            limit = _FAR
            while faults:
                limit = faults[0].strikes_at(first) - (generation.index - first)
                if limit > 0:
                    break
                await self._strike(faults.pop(0))
                limit = _FAR
            await self._until_due(loop)
            events = bytearray()
            for _ in range(self.pace.take(limit, loop.time())):
                events += self._advance()
                if generation.finish_reason is not None:
                    break
            if late is not None and generation.finish_reason is not None:
                events = await self._send_finish_first(events, float(late.arg))
            if events:
                self.send(events)
            await self.connection.drain()
            if not self.pace.is_steady():
                await asyncio.sleep(0)

    async def _send_finish_first(self, events: bytearray, seconds: float) -> bytearray:
        """Send up to the event that finishes; return what comes ``seconds`` later."""
        finish = re.search(rb'"(?:finish|stop)_reason":"[a-z]|"stop":true', events)
        assert finish is not None
        end = events.index(b"\n\n", finish.start()) + 2
        self.send(events[:end])
        await self.connection.flush()
        await asyncio.sleep(seconds)
        return events[end:]

    async def _strike(self, fault: Fault) -> None:
        if self.engine.faults.spend(fault):
            await IN_STREAM[fault.kind](self, fault)

    def _advance(self) -> bytes:
        piece = self.generation.advance()
        if self.generation.finish_reason is not None:
            return self.reply.ending(piece)
        return self.reply.event(piece)

    async def _collect(self, prefill_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        await self._prefill(prefill_seconds)
        pieces = []
        while self.generation.finish_reason is None:
            await self._until_due(loop)
            self.pace.take(1, 0.0)
            pieces.append(self.generation.advance())
        self.connection.reply_json(self.reply.document(pieces))

    async def _prefill(self, seconds: float) -> None:
        start = asyncio.get_running_loop().time() + seconds
        slow = self.engine.faults.take("slow", self.prompt_text)
        jitter = self.engine.faults.take("jitter", self.prompt_text)
        if jitter:
            self.pace = JitteryPace(start, jitter.arg, self.engine.counters["started"])
        else:
            self.pace = Pace(start, float(slow.arg) if slow else self.engine.interval)
        if seconds > 0:
            await asyncio.sleep(seconds)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        await self.engine.while_paused()
        if self.engine.slowness:
            self.pace.shift(self.engine.slowness)
        wait = self.pace.due - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        if self.pace.is_steady():
            self.engine.note_lag(loop.time() - self.pace.due)
