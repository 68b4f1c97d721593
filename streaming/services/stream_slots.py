"""How many sessions may be live at once, of a tenant, a credential and an end user; and the queue.

A request that finds no slot waits for its turn: by level, within a level in turns between the end
users of its tenant, and within one end user as they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from streaming.conf import conf
from streaming.core.limits import Ask, Scope, Turn
from streaming.errors import RateLimited
from streaming.metrics.catalogue import QUEUE_WAIT, RATE_LIMITED
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal

RETRY_SECONDS = 1.0
"""Streams end at any time."""
AT_ONCE = 0.05
"""Seconds below which nobody has waited."""


async def take_slot(
    gateway: Gateway, principal: Principal, user: str, session_id: UUID, scopes: Sequence[Scope]
) -> None:
    """Return when the session may begin; the caller gives the slots back if it does not.

    ``user`` is the name under which it takes turns. Raises ``RateLimited`` after ``QUEUE_SECONDS``,
    or at once where the queue is full; ``ShuttingDown`` when this process is told to end.
    """
    limits = [scope.limit for scope in scopes]
    ask = Ask(
        session_id,
        user,
        principal.level,
        tuple(
            (scope.name, scope.limit.streams_at_once)
            for scope in scopes
            if scope.limit.streams_at_once is not None
        ),
        tuple(
            (scope.name, scope.limit.tokens_per_minute)
            for scope in scopes
            if scope.limit.tokens_per_minute is not None
        ),
    )
    if not ask.slots and not ask.tokens:
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        turn = await gateway.allowances.begin(str(principal.tenant_id), ask, conf().queue_seconds)
    finally:
        if (waited := loop.time() - began) > AT_ONCE:
            QUEUE_WAIT.note(waited)
    gateway.admit()  # much may have changed meanwhile
    if turn is Turn.GRANTED:
        return
    RATE_LIMITED.add(1, "streams")
    fewest = min(limit.streams_at_once for limit in limits if limit.streams_at_once is not None)
    raise RateLimited(
        f"Too many streams at once: {fewest} allowed"
        + (", and none has ended in time." if turn is Turn.WAITING else ", and too many wait."),
        retry_after=RETRY_SECONDS,
    )
