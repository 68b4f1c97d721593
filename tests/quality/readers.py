"""A live session in this process, and what a reader of it is given."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from psycopg_pool import AsyncConnectionPool

from streaming.core.chat import parse_chat_request
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.reader import Reader
from streaming.runtime.token_log import SessionLog
from streaming.services.attach import Attachment

CHAT = {"model": "m", "messages": [{"role": "user", "content": "-"}]}


def live_session(log: SessionLog) -> LiveSession:
    return LiveSession(
        id=log.session_id,
        reference="TEST",
        principal=Principal(1, "tests", None),
        request=parse_chat_request(CHAT),
        model="m",
        seed=None,
        log=log,
    )


def attachment(
    session: LiveSession, cursor: int = 0, pool: AsyncConnectionPool | None = None
) -> Attachment:
    """A reader of it. The gateway has no more than its sessions, and a journal that is well."""
    gateway: Any = SimpleNamespace(
        sessions={session.id: session},
        journal=SimpleNamespace(down_seconds=0.0),
        pool=pool,
        draining=False,
    )
    return Attachment(gateway, session.id, Reader(cursor, 0.0))


@dataclass
class Course:
    """What one reader was given, in order: texts, and the names of control events."""

    seen: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    """The cursor behind each of them."""

    async def follow(self, attached: Attachment) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(attached.pieces()) as pieces:
            async for piece in pieces:
                self._controls(attached)
                if piece is not None:
                    attached.reader.sent(piece.last_seq, loop.time())
                    self._note(piece.text if piece.terminal is None else piece.text + "|", attached)
                self._controls(attached)

    def _controls(self, attached: Attachment) -> None:
        for control in attached.due_controls():
            assert control.seq == attached.reader.cursor
            self._note(control.name, attached)

    def _note(self, what: str, attached: Attachment) -> None:
        self.seen.append(what)
        self.at.append(attached.reader.cursor)


def flush(log: SessionLog) -> None:
    """Make durable what was appended, as the journal does, but without a database."""
    while log.has_pending:
        log.committed(log.take(), False)
