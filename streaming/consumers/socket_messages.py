"""The messages of a WebSocket: read, with what is wrong named, and written one at a time."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
import psycopg
from channels.generic.websocket import AsyncWebsocketConsumer

from streaming.errors import GatewayError, InvalidRequest, JournalUnavailable, NotFound

logger = logging.getLogger(__name__)

MAX_REF_BYTES = 4096

Message = dict[str, Any]
NO_CHANNEL_LAYER = "none"
"""Wake-ups come through the process's one ``Bus``. With a channel of its own each socket would hold a
connection to Redis, wait on it, and end with an exception when Redis restarts."""


def now_text() -> str:
    """The time, as messages tell it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class MessageSocket(AsyncWebsocketConsumer):
    """Tells messages and errors; with ``_cloudevents`` all but tokens stand in an envelope."""

    channel_layer_alias = NO_CHANNEL_LAYER

    _cloudevents = False
    _sent_at = 0.0
    """``loop.time()`` of the last message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_id = uuid4().hex
        self._writing = asyncio.Lock()

    async def _send(self, message: Message) -> None:
        if self._cloudevents and message["type"] != "token":
            message = {
                "specversion": "1.0",
                "id": uuid4().hex,
                "source": "/ws/chat/",
                "type": f"unbroken.{message['type']}",
                "time": now_text(),
                "datacontenttype": "application/json",
                "data": message,
            }
        async with self._writing:
            self._sent_at = asyncio.get_running_loop().time()
            await self.send(text_data=orjson.dumps(message).decode())

    def _send_now(self, message: Message) -> bool:
        """``_send`` of tokens, without waiting; False, and nothing is sent, where that cannot be."""
        push = self.scope.get("extensions", {}).get("unbroken.push")
        if push is None or self._writing.locked() or not push(orjson.dumps(message)):
            return False
        self._sent_at = asyncio.get_running_loop().time()
        return True

    async def _tell_error(
        self, exc: GatewayError, cause: Any = None, session_id: UUID | None = None
    ) -> None:
        """``cause``: the client's message that it answers, as far as it could be read."""
        message: Message = {"type": "error", **exc.as_openai()}
        if exc.retry_after is not None:
            message["error"]["retry_after"] = round(exc.retry_after, 3)
        if isinstance(cause, dict) and cause.get("ref") is not None:
            message["ref"] = cause["ref"]
        if session_id is not None:
            message["session"] = str(session_id)
        await self._send(message)

    def _without_database(self, cause: psycopg.OperationalError) -> GatewayError:
        logger.warning("no database for a message: %s", cause)
        return JournalUnavailable("The database cannot be reached.", retry_after=1)

    def _unforeseen(self, cause: Exception) -> GatewayError:
        """Log what nobody foresaw, and tell the client where to find it."""
        logger.error("a message failed", exc_info=cause)
        return GatewayError(f"The gateway failed to answer; it is logged as {self._request_id}.")


def parsed(text: str | None, data: bytes | None) -> Message:
    """What a client has sent. Raises ``InvalidRequest``."""
    try:
        message = orjson.loads(text if text is not None else data or b"")
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The message is not valid JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise InvalidRequest("A message must be a JSON object.")
    if len(spelled(message.get("ref"), "ref")) > MAX_REF_BYTES:
        raise InvalidRequest(f"ref has at most {MAX_REF_BYTES} bytes.", param="ref")
    return message


def spelled(value: Any, name: str) -> bytes:
    """As JSON again. Raises ``InvalidRequest`` for what is nested too deeply to be written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise InvalidRequest(f"{name} is nested too deeply.", param=name) from exc


def session_id_of(message: Message) -> UUID:
    """Raises ``NotFound`` for what is not an id at all."""
    try:
        return UUID(str(message.get("session")))
    except ValueError:
        raise NotFound("There is no such session.") from None


def text_of(message: Message, name: str) -> str | None:
    """A field that is a string, if it is there. Raises ``InvalidRequest``."""
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string.", param=name)
    return value


def seq_of(message: Message) -> int:
    """0 where it is not told. Raises ``InvalidRequest``."""
    seq = message.get("seq", 0)
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 2**62:
        raise InvalidRequest("seq must be a non-negative integer.", param="seq")
    return seq
