"""A database with the tables of the gateway, for tests that use the journal in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from streaming.core.chunks import Token
from streaming.core.ids import reference_code, uuid7
from streaming.runtime import instance
from streaming.runtime.journal import Journal
from streaming.runtime.records import Record, RecordKind, now, packed
from streaming.runtime.token_log import SessionLog
from tests.stack import Stack


@pytest.fixture(scope="module")
def database() -> Iterator[Stack]:
    """A stack without processes."""
    with Stack(gateways=0) as stack:
        stack.api_key()
        yield stack


@dataclass
class Bench:
    """A journal, and logs that write through it. ``owners`` counts its instances."""

    stack: Stack
    journal: Journal
    instance_id: int
    pool: AsyncConnectionPool
    notified: list[SessionLog] = field(default_factory=list)

    def created(self, epoch: int = 1, **values: Any) -> SessionLog:
        """The log of a new session; what creates it is pending."""
        log = SessionLog(uuid7(), epoch, self.journal.notify)
        log.record(creation(log, self.instance_id, **values))
        return log

    async def created_surely(self) -> SessionLog:
        log = self.created()
        await log.flushed()
        return log

    async def connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """Another party's connection, in a transaction from its first statement on."""
        return await psycopg.AsyncConnection.connect(self.stack.database_url)


def creation(log: SessionLog, owner: int, **values: Any) -> Record:
    row = {
        "id": log.session_id, "reference": reference_code(), "tenant_id": 1, "api_key_id": None,
        "end_user": "", "request_id": "", "protocol": "openai", "model": "m", "model_requested": "m",
        "request": packed(b"{}"), "seed": None, "state": "created", "owner_id": owner,
        "created_at": now(), "epoch": log.epoch, "on_disconnect": "suspend", **values,
    }  # fmt: skip
    return Record(RecordKind.SESSION_CREATED, row)


def tokens(text: str, first_id: int = 1) -> list[Token]:
    """One token a character."""
    return [Token(first_id + index, char) for index, char in enumerate(text)]


def take_over(session_id: UUID) -> tuple[str, tuple[UUID]]:
    """What takeover is: the compare-and-set of the epoch."""
    return (
        "UPDATE session_fence SET epoch = epoch + 1 WHERE session_id = %s RETURNING epoch",
        (session_id,),
    )


@pytest.fixture
async def bench(database: Stack) -> AsyncIterator[Bench]:
    owner = await instance.register(database.database_url)
    journal = Journal(database.database_url, owner)
    await journal.start()
    async with AsyncConnectionPool(
        database.database_url, min_size=1, open=False, kwargs={"autocommit": True}
    ) as pool:
        yield Bench(database, journal, owner, pool)
    await journal.stop()
