"""One answer on its way to one HTTP reader, whatever the wire format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, ClassVar, Literal, Protocol

from streaming.conf import conf
from streaming.consumers.base import Header, StreamConsumer
from streaming.consumers.heartbeat import KEEPALIVE, PING, KeepAlive
from streaming.core.state import SessionState
from streaming.errors import error_from_openai
from streaming.metrics import connection_ended
from streaming.metrics.catalogue import SSE_CHUNKS, SSE_CONNECTIONS
from streaming.runtime.live import ControlEvent
from streaming.runtime.quality import ConnectionQuality
from streaming.runtime.token_log import LogSlice
from streaming.services.attach import Attachment


class EventWriter(Protocol):
    """The wire format of a stream."""

    protocol: ClassVar[str]
    """What metrics call it."""
    tells_errors: ClassVar[bool]
    """Whether ``end`` tells an error that ended the session."""

    def opening(self) -> bytes:
        """What comes before the first token."""

    def tokens(self, seq: int, text: str) -> bytes:
        """Tokens up to ``seq``."""

    def end(self, piece: LogSlice) -> bytes:
        """The terminal record; empty where an error is told instead."""

    def control(self, event: ControlEvent) -> bytes:
        """Something that happened between two tokens; empty if the format does not tell."""

    def quality(self, told: dict[str, Any]) -> bytes:
        """How its connection does; empty if the format does not tell, or nobody asked."""


# EventSource comes back at once with its cursor; so do our own clients.
MOVE = b"retry: 50\n: moving to another connection\n\n"


class AnswerStream:
    """Sends what is durable, pings while the answer is being recovered, keeps silence away.

    ``start_after``: seconds after which the head is sent even without a token (0: at once).
    ``quality``: of its connection; how often it hears from us and what travels together follow it.
    """

    def __init__(
        self,
        consumer: StreamConsumer,
        attachment: Attachment,
        writer: EventWriter,
        *,
        headers: Callable[[], list[Header]],
        start_after: float,
        quality: ConnectionQuality,
        resumable: bool = False,
    ) -> None:
        self._resumable = resumable
        self._loop = asyncio.get_running_loop()
        self._born = self._loop.time()
        self._consumer = consumer
        self._attachment = attachment
        self._writer = writer
        self._headers = headers
        self._start_after = start_after
        self._quality = quality
        quality.look((attachment.reader,), self._born)
        attachment.window = quality.coalesce_ms(quality.level) / 1000
        self._keep_alive: KeepAlive | None = None
        self._pinging = False
        self._starting = asyncio.Lock()
        self._end: Literal["whole", "moved", "early"] = "early"

    async def run(self) -> None:
        """Stream to the end. Raises ``GatewayError``: before the head a status, after it in-band."""
        loop = self._loop
        SSE_CONNECTIONS.value += 1
        try:
            await self._follow(loop)
        finally:
            SSE_CONNECTIONS.value -= 1
            # One that took nothing to the last was not looked at since.
            self._quality.look((self._attachment.reader,), loop.time())
            self._quality.closed()
            lifetime = loop.time() - self._born
            connection_ended(self._writer.protocol, self._end, lifetime)
            self._consumer.log_answer(
                self._writer.protocol, self._end, lifetime, self._attachment.reader.cursor
            )
            if self._consumer.span is not None:
                self._consumer.span.note(
                    session_id=str(self._attachment.session_id),
                    seq=self._attachment.reader.cursor,
                    end=self._end,
                )

    async def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._start_after == 0:
            await self._start()
        starter = loop.create_task(self._start_after_a_while())
        reader = self._attachment.reader
        try:
            async with aclosing(self._attachment.pieces(self._push)) as pieces:
                async for piece in pieces:
                    if self._resumable and self._must_move(loop.time()):
                        self._attachment.expect_back()
                        await self._send(MOVE)
                        self._end = "moved"
                        return
                    if piece is not None:
                        await self._send(self._due_controls() + self._events_of(piece))
                        reader.sent(piece.last_seq, loop.time())
                        if piece.text:
                            SSE_CHUNKS.value += 1
                        if piece.terminal is not None:
                            self._end = "whole"
                            self._raise_error(piece.terminal)
                    # After tokens too: news that came while they were sent wakes nobody again.
                    while controls := self._due_controls():
                        await self._send(controls)
                    if told := self._due_quality(loop.time()):
                        await self._send(told)
                    self._look_at_state()
        finally:
            starter.cancel()
            if self._keep_alive is not None:
                self._keep_alive.__exit__()

    def _push(self, seq: int, text: str) -> bool:
        """Send ordinary tokens past our task; False where there is more to do than that."""
        now = self._loop.time()
        if (
            self._keep_alive is None
            or self._pinging
            or (self._resumable and self._must_move(now))
            or self._quality.is_due(now)
            or not self._consumer.write_now(self._writer.tokens(seq, text))
        ):
            return False
        self._attachment.reader.sent(seq, now)
        if text:
            SSE_CHUNKS.value += 1
        return True

    def _must_move(self, now: float) -> bool:
        """Whether the reader is to come back on a new connection: we stop, or this one is too old."""
        age = conf().max_connection_age
        return self._attachment.gateway_is_draining or bool(age and now - self._born > age)

    async def _start_after_a_while(self) -> None:
        await asyncio.sleep(self._start_after)
        await self._start()

    async def _start(self) -> None:
        async with self._starting:
            if self._keep_alive is None:
                await self._consumer.start_stream(200, self._headers())
                told = self._writer.quality(self._quality.told())
                await self._consumer.write(self._writer.opening() + told)
                self._keep_alive = KeepAlive(self._consumer, self._quality.heartbeat)
                self._keep_alive.__enter__()
                self._look_at_state()

    async def _send(self, data: bytes) -> None:
        if data:
            if self._keep_alive is None:
                await self._start()
            await self._consumer.write(data)

    def _events_of(self, piece: LogSlice) -> bytes:
        self._recovered()
        tokens_to = piece.last_seq - (piece.terminal is not None)
        data = b""
        if piece.text or piece.terminal is None:
            data += self._writer.tokens(tokens_to, piece.text)
        if piece.terminal is not None:
            data += self._writer.end(piece)
        return data

    def _raise_error(self, terminal: dict[str, Any]) -> None:
        """Where the format has no event of its own for an error, the consumer tells it."""
        if (error := terminal.get("error")) and not self._writer.tells_errors:
            raise error_from_openai(error)

    def _recovered(self) -> None:
        if not self._pinging or self._keep_alive is None:
            return
        if self._attachment.state is not SessionState.RECOVERING:  # else they are from before it
            self._pinging = False
            self._keep_alive.change(self._quality.heartbeat, KEEPALIVE)

    def _look_at_state(self) -> None:
        """Ping a reader whose answer is being recovered, at once and then every second."""
        if self._keep_alive is None or self._pinging:
            return
        if self._attachment.state is SessionState.RECOVERING:
            self._pinging = True
            self._keep_alive.change(conf().recovering_ping_seconds, PING, now=True)

    def _due_quality(self, now: float) -> bytes:
        """What there is to tell of the connection; what is sent on it follows."""
        quality = self._quality
        if self._keep_alive is None or not quality.look((self._attachment.reader,), now):
            return b""
        self._attachment.window = quality.coalesce_ms(quality.level) / 1000
        self._attachment.note_health()
        if not self._pinging:
            self._keep_alive.change(quality.heartbeat, KEEPALIVE)
        return self._writer.quality(quality.told())

    def _due_controls(self) -> bytes:
        """Control events that stand at the reader's cursor."""
        due = self._attachment.due_controls()
        return b"".join(map(self._writer.control, due)) if due else b""
