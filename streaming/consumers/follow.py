"""One session on one WebSocket: what its reader is told, and when."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

from streaming.conf import conf
from streaming.consumers.heartbeat import silence
from streaming.consumers.openai_format import usage_of
from streaming.consumers.socket_messages import Message, now_text
from streaming.core import log_fields
from streaming.core.levels import Level
from streaming.core.state import SessionState
from streaming.errors import GatewayError, error_from_openai
from streaming.runtime.gateway import Gateway
from streaming.runtime.token_log import LogSlice
from streaming.services.attach import Attachment, attached

if TYPE_CHECKING:
    from streaming.consumers.websocket import ChatSocket

logger = logging.getLogger(__name__)

SENT_REMEMBERED = 64
STORED_SECONDS = 5.0
"""How long a new session is kept from its client while the database is slow, or away."""


class Follow:
    """One session on one socket."""

    def __init__(
        self,
        socket: ChatSocket,
        gateway: Gateway,
        session_id: UUID,
        reference: str,
        cursor: int,
        ref: Any,
        epoch: int,
        level: Level,
    ) -> None:
        self._socket = socket
        self._gateway = gateway
        self._session_id = session_id
        self._cursor = cursor
        self.recovering = False
        self.attachment: Attachment | None = None
        self._level = level
        self._sent: deque[tuple[int, float]] = deque(maxlen=SENT_REMEMBERED)
        """What was sent last, and when: acknowledgements tell the round trip."""
        self._opening: Message = {
            "type": "session",
            "session": str(session_id),
            "reference": reference,
            "epoch": epoch,
            "seq": cursor,
            "server_time": now_text(),
            "heartbeat_seconds": socket._quality.heartbeat,
            "silence_seconds": silence(socket._quality.wishes.heartbeat),
            "resume_window_seconds": conf().resume_window,
            "level": level.value,
        }
        if ref is not None:
            self._opening["ref"] = ref

    def heed_quality(self) -> None:
        """The connection is better or worse than it was, or its client wants something else."""
        if self.attachment is not None:
            self._socket._quality.stands_for(self.attachment.reader)
            self.attachment.window = self._socket._quality.coalesce_ms(self._level) / 1000
            self.attachment.note_health()

    def note_round_trip(self, seq: int) -> None:
        """The client has acknowledged ``seq``."""
        while self._sent and self._sent[0][0] <= seq:
            sent, at = self._sent.popleft()
            if sent == seq:
                now = asyncio.get_running_loop().time()
                self._socket._quality.note_round_trip(now - at)

    async def run(self) -> None:
        socket = self._socket
        loop = asyncio.get_running_loop()
        connection = socket.scope.get("extensions", {}).get("unbroken.socket")
        log_fields.begin(**{**log_fields.fields(), "session_id": str(self._session_id)})
        began = loop.time()
        try:
            with attached(
                self._gateway, self._session_id, self._cursor, connection, "websocket"
            ) as attachment:
                self.attachment = attachment
                self.heed_quality()
                await self._until_stored(attachment)
                await socket._send(self._opening)
                async with aclosing(attachment.pieces(self._push)) as pieces:
                    async for piece in pieces:
                        if piece is not None:
                            await self._tell_controls(attachment)
                            await self._tell_tokens(attachment, piece)
                            self._note_sent(attachment, piece.last_seq)
                        # After tokens too: news that came meanwhile wakes nobody again.
                        await self._tell_controls(attachment)
                        await self._tell_state(attachment)
        except GatewayError as exc:
            await socket._tell_error(exc, session_id=self._session_id)
        except Exception as exc:  # noqa: BLE001  the edge of the task
            await socket._tell_error(socket._unforeseen(exc), session_id=self._session_id)
        finally:
            self._log_answer(loop.time() - began)

    def _log_answer(self, seconds: float) -> None:
        """As ``StreamConsumer.log_answer``, of one of the socket's answers."""
        attachment = self.attachment
        if attachment is None:
            return
        outcome = "early"
        if attachment.is_whole:
            outcome = "whole"
        elif attachment.sent_away:
            outcome = "moved"
        logger.info(
            "answer told",
            extra={
                "protocol": "websocket",
                "outcome": outcome,
                "tokens": attachment.reader.cursor,
                "seconds": round(seconds, 3),
            },
        )

    async def _until_stored(self, attachment: Attachment) -> None:
        """Whoever is told of a session may come back to it at once, on any gateway process."""
        if attachment.live is not None:
            try:
                async with asyncio.timeout(STORED_SECONDS):
                    await attachment.live.log.stored()
            except (TimeoutError, GatewayError):
                pass  # told to whoever follows it, after its opening

    async def _tell_controls(self, attachment: Attachment) -> None:
        """What has happened at the reader's cursor."""
        while due := attachment.due_controls():  # more may come while these are sent
            for control in due:
                if control.name in ("recovering", "recovered"):
                    self.recovering = control.name == "recovering"
                    await self._socket._send(
                        {"type": control.name, "session": str(self._session_id), **control.data}
                    )

    async def _tell_state(self, attachment: Attachment) -> None:
        """A recovery that this process did not begin, or whose beginning it did not see."""
        if (
            attachment.state is SessionState.RECOVERING
            and not self.recovering
            and attachment.is_caught_up  # what was durable before it belongs before it
        ):
            self.recovering = True
            await self._socket._send(
                {
                    "type": "recovering",
                    "session": str(self._session_id),
                    "seq": attachment.reader.cursor,
                }
            )

    def _push(self, seq: int, text: str) -> bool:
        """Send ordinary tokens past our task; see ``Attachment.pieces``."""
        attachment = self.attachment
        if (
            attachment is None
            or self.recovering
            or not self._socket._send_now(self._tokens(seq, text))
        ):
            return False
        self._note_sent(attachment, seq)
        return True

    def _tokens(self, seq: int, text: str) -> Message:
        return {"type": "token", "session": str(self._session_id), "seq": seq, "text": text}

    def _note_sent(self, attachment: Attachment, seq: int) -> None:
        now = asyncio.get_running_loop().time()
        attachment.reader.sent(seq, now)
        self._sent.append((seq, now))

    async def _tell_tokens(self, attachment: Attachment, piece: LogSlice) -> None:
        session = str(self._session_id)
        seq = piece.last_seq - (piece.terminal is not None)
        if attachment.state is not SessionState.RECOVERING:  # else they are from before the failure
            self.recovering = False
        if piece.text or piece.terminal is None:
            await self._socket._send(self._tokens(seq, piece.text))
        if piece.terminal is None:
            return
        if error := piece.terminal.get("error"):
            await self._socket._send(
                {
                    "type": "error",
                    "session": session,
                    "seq": piece.last_seq,
                    **error_from_openai(error).as_openai(),
                }
            )
            return
        await self._socket._send(
            {
                "type": "done",
                "session": session,
                "seq": piece.last_seq,
                "state": piece.terminal.get("state"),
                "finish_reason": piece.terminal.get("finish_reason") or None,
                "usage": usage_of(piece.terminal, piece.last_seq - 1),
            }
        )
