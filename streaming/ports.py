"""What others do for streaming, which knows none of them; ``gateway_project.apps`` connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from psycopg_pool import AsyncConnectionPool

from streaming.core.chat import ChatRequest
from streaming.core.moderation import Moderated, Moderator
from streaming.tracing import Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A session that is about to begin. ``model`` is the served one."""

    session_id: UUID
    tenant_id: int
    model: str
    request: ChatRequest


async def _admit_all(pool: AsyncConnectionPool, start: Start) -> None:
    """Nobody counts."""


def _settle_nothing() -> int:
    return 0


def _reduce_all(session_ids: Iterable[UUID]) -> set[UUID]:
    return set(session_ids)


def _used_nothing(session_ids: Iterable[UUID]) -> Mapping[UUID, dict[str, Any]]:
    return {}


def _password_is_enough(request: HttpRequest) -> bool:
    return True


@dataclass(slots=True)
class Ports:
    """``admit`` raises ``QuotaExceeded`` for a session that may not begin, and reserves what it may
    come to. ``settle`` settles what has waited too long for the worker, in this thread; how many.
    ``may_reduce``: of which of these sessions nobody has to know any more who asked. ``usage_of``: what
    is known of their use, for the end user who asks for it (JSON, amounts as text); of those that were
    settled. ``is_verified`` says whether who is logged in has shown what staff must show besides a
    password; the request has its user and session. ``moderator`` makes who judges an attempt of an answer
    before it is shown, or None for no one; where it is None itself nobody is asked.
    ``tracing`` makes the spans of a trace; None: nobody traces."""

    admit: Callable[[AsyncConnectionPool, Start], Awaitable[None]] = _admit_all
    settle: Callable[[], int] = _settle_nothing
    may_reduce: Callable[[Iterable[UUID]], set[UUID]] = _reduce_all
    usage_of: Callable[[Iterable[UUID]], Mapping[UUID, dict[str, Any]]] = _used_nothing
    is_verified: Callable[[HttpRequest], bool] = _password_is_enough
    moderator: Callable[[Moderated], Moderator | None] | None = None
    tracing: Tracing | None = None


ports = Ports()
