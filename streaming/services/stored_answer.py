"""The answer of a session that has ended, as it is stored: for whoever was not there, or asks again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from streaming.errors import SessionPurged
from streaming.runtime.adoption import StoredSession
from streaming.runtime.gateway import Gateway
from streaming.runtime.log_reader import slice_from_database


async def answer_pieces(gateway: Gateway, stored: StoredSession) -> AsyncGenerator[str]:
    """The text in pieces, so that no answer is ever in memory as a whole.

    Raises ``SessionPurged`` when it is deleted meanwhile, and ``JournalUnavailable``.
    """
    seq = 0
    while seq < stored.durable_seq:
        piece = await slice_from_database(gateway.pool, stored.id, seq)
        if piece is None:
            raise SessionPurged
        yield piece.text
        seq = piece.last_seq
