"""What traces are told of a request and of its attempts; ``gateway_project.tracing`` tells OpenTelemetry.

Nobody is connected by default (``ports.tracing`` is None), and then nothing is done. A trace goes from
the reader's request to each engine that was asked for its answer: contexts are carried as the text of a
``traceparent`` header (https://www.w3.org/TR/trace-context/), which is stored with the session, so that
another process that takes it over goes on in the same trace. No span is made for a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from psycopg import AsyncConnection

Attribute = str | int | float | bool


class ReaderSpan(Protocol):
    """A reader's request, from its head to the end of the answer, or of the connection."""

    def note(self, **attributes: Attribute) -> None:
        """Facts about it, by their names below ``unbroken.``."""

    def answered(self, status: int) -> None:
        """The response's head is out."""


class AttemptSpan(Protocol):
    """One attempt: one request to one engine."""

    traceparent: str
    """What that engine is to go on from."""

    def first_token(self) -> None: ...

    def end(self, reason: str, *, is_failure: bool, **attributes: Attribute) -> None:
        """How it ended: see ``models.Attempt.end_reason``."""


class Tracing(Protocol):
    """Makes spans. Nothing here may raise, wait, or see what was asked or answered."""

    def reader(
        self, name: str, headers: Iterable[tuple[bytes, bytes]], **attributes: Attribute
    ) -> AbstractContextManager[ReaderSpan]:
        """The span of a request with these headers; what is done within belongs to it."""

    def here(self) -> str:
        """The context of the reader's span that we are in; empty outside of one."""

    def attempt(self, within: str, model: str, **attributes: Attribute) -> AttemptSpan:
        """The span of an attempt for the request whose context is ``within``."""


_STORED = """
SELECT session_id, data->>'traceparent' FROM streaming_sessionevent
WHERE session_id = ANY(%s) AND kind = 'created' AND data ? 'traceparent'
"""


async def stored_contexts(
    connection: AsyncConnection[tuple[object, ...]], session_ids: list[UUID]
) -> dict[UUID, str]:
    """In which contexts sessions were created, of those that were traced."""
    cursor = await connection.execute(_STORED, (session_ids,))
    return {UUID(str(session_id)): str(context) for session_id, context in await cursor.fetchall()}
