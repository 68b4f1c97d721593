"""Long polling: the events after a cursor as one JSON object, for networks that let nothing stream.

A poll is answered when there is something to tell, and a reader that polls on has not left.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from streaming.consumers.base import StreamConsumer, sse_headers
from streaming.consumers.openai_format import usage_of
from streaming.consumers.request import Request
from streaming.errors import InvalidRequest
from streaming.runtime.adoption import StoredSession
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import ControlEvent
from streaming.runtime.token_log import LogSlice
from streaming.services.attach import Attachment, attached

MAX_WAIT_SECONDS = 25.0
"""Less than what proxies usually bear without a byte."""
FINDING_SECONDS = 1.0
"""What even a poll that does not wait needs to hear of a session that another process owns, and to
have it continued where nobody does."""
GATHER_SECONDS = 0.2
"""How long tokens are gathered once there is one: each poll costs a request. The first token, what
happens to the answer, and its end are told at once."""
MAX_CHARS = 256 * 1024


def wants_poll(request: Request) -> bool:
    """Whether events are asked for as JSON: by ``?wait=`` or by ``Accept: application/json``."""
    return "wait" in request.query or request.header("accept", "") == "application/json"


def wait_of(request: Request) -> float:
    """Seconds, 0 to 25, for which the client would wait for news. Raises ``InvalidRequest``."""
    text = request.query.get("wait", "")
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidRequest(f"wait must be 0 to {MAX_WAIT_SECONDS:g} seconds.", param="wait")
    return seconds


async def answer_poll(
    consumer: StreamConsumer,
    gateway: Gateway,
    stored: StoredSession,
    *,
    cursor: int,
    wait: float,
    opening: dict[str, Any] | None,
) -> None:
    """Answer one poll: ``{"events": [{"event", "id"?, "data"}…], "cursor": n, "ended": bool}``.

    ``opening``: the data of the ``session`` event that a new reader is told first. Raises
    ``GatewayError`` as following a session does.
    """
    with attached(gateway, stored.id, cursor, consumer.socket, "longpoll", polls=True) as reading:
        poll = _Poll(reading, stored.durable_seq, opening)
        await poll.run(wait)
        kept = {b"content-type", b"x-request-id"}  # those are of the response itself
        head = sse_headers(str(stored.id), consumer.request_id)
        headers = [header for header in head if header[0] not in kept]
        await consumer.respond_json(200, poll.body(), headers)
        if not poll.ended:
            reading.expect_back()
        reading.reader.sent(reading.reader.cursor, asyncio.get_running_loop().time())


class _Poll:
    """What one poll has to tell."""

    def __init__(
        self, attachment: Attachment, durable_seq: int, opening: dict[str, Any] | None
    ) -> None:
        self._attachment = attachment
        self._reader = attachment.reader
        self._durable_seq = durable_seq
        """What was durable when the poll came: that much is told whatever it takes."""
        self._events: list[dict[str, Any]] = []
        self._chars = 0
        self.ended = False
        if opening is not None:
            self._events.append({"event": "session", "data": opening})
        # They may have been told by the poll before: they keep nobody from waiting for news.
        self._note(attachment.due_controls())

    def body(self) -> dict[str, Any]:
        return {"events": self._events, "cursor": self._reader.cursor, "ended": self.ended}

    async def run(self, wait: float) -> None:
        """Return when there is enough to tell, or after ``wait`` seconds."""
        loop = asyncio.get_running_loop()
        if self._attachment.live is None or self._reader.cursor < self._durable_seq:
            wait = max(wait, FINDING_SECONDS)
        try:
            async with (
                asyncio.timeout(wait) as limit,
                aclosing(self._attachment.pieces()) as pieces,
            ):
                async for piece in pieces:
                    is_first = piece is not None and self._reader.cursor == 0
                    if piece is not None:
                        self._take(piece)
                    is_news = self._note(self._attachment.due_controls())
                    is_behind = self._reader.cursor < self._durable_seq
                    if self.ended or self._attachment.gateway_is_draining:
                        return
                    if self._chars > MAX_CHARS or ((is_first or is_news) and not is_behind):
                        return
                    if piece is not None and (until := limit.when()) is not None:
                        limit.reschedule(min(until, loop.time() + GATHER_SECONDS))
        except TimeoutError:
            pass  # what there is, be it nothing

    def _take(self, piece: LogSlice) -> None:
        tokens_to = piece.last_seq - (piece.terminal is not None)
        if piece.text or piece.terminal is None:
            self._add("token", tokens_to, {"seq": tokens_to, "text": piece.text})
        if piece.terminal is not None:
            self._end(piece.last_seq, piece.terminal)
        # What was gathered counts as sent only when it is.
        self._reader.cursor = piece.last_seq
        self._chars += len(piece.text)

    def _end(self, seq: int, terminal: dict[str, Any]) -> None:
        self.ended = True
        if error := terminal.get("error"):
            self._add("error", seq, {"seq": seq, "error": error})
            return
        data = {
            "seq": seq,
            "state": terminal.get("state"),
            "finish_reason": terminal.get("finish_reason") or None,
            "usage": usage_of(terminal, seq - 1),
        }
        self._add("done", seq, data)

    def _add(self, name: str, seq: int, data: dict[str, Any]) -> None:
        self._events.append({"event": name, "id": seq, "data": data})

    def _note(self, controls: list[ControlEvent]) -> bool:
        self._events += [{"event": control.name, "data": control.data} for control in controls]
        return bool(controls)
