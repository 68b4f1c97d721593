"""Whether a request may begin a session: rates, then slots, of its tenant, credential and end user.

What counts, and what the client is told, is written down in ``docs/limits.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from streaming.core.gcra import Figure, duration, tightest
from streaming.core.limits import Limit, Rate, Scope
from streaming.errors import RateLimited
from streaming.metrics.catalogue import RATE_LIMITED
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import Principal
from streaming.services.stream_slots import take_slot

Header = tuple[bytes, bytes]

UNITS = ("requests", "tokens")
MINTS = "mints"
WORDS = {MINTS: "embed tokens"}
"""What a message calls a unit."""
OWNERS = {
    "tenant": "this tenant",
    "key": "this API key",
    "token": "this embed token",
    "user": "this end user",
}


@dataclass(slots=True)
class Usage:
    """How the tightest limit of each unit stands after a request was admitted or refused."""

    requests: Figure | None = None
    tokens: Figure | None = None

    def headers(self) -> list[Header]:
        """``x-ratelimit-*`` as OpenAI sends them; none where there is no limit."""
        found: list[Header] = []
        for unit in UNITS:
            figure: Figure | None = getattr(self, unit)
            if figure is not None:
                for name, value in (
                    ("limit", str(figure.limit)),
                    ("remaining", str(figure.remaining)),
                    ("reset", duration(figure.reset_seconds)),
                ):
                    found.append((f"x-ratelimit-{name}-{unit}".encode(), value.encode()))
        return found


def scopes_of(principal: Principal, end_user: str) -> list[Scope]:
    """What a request counts against. One that names no end user has no end user's limits."""
    found = [tenant_scope(principal.tenant_id, principal.tenant_limit)]
    key_limit = principal.limit
    if principal.embed is not None:
        # Whoever holds it works on the account of the key that it was minted with.
        found.append(Scope("token", f"embed.{principal.embed.token_id}", principal.limit))
        key_limit = principal.embed.key_limit
    if principal.api_key_id is not None:
        found.append(Scope("key", f"key.{principal.api_key_id}", key_limit))
    if end_user:
        found.append(user_scope(principal.tenant_id, end_user, principal.user_limit))
    return [scope for scope in found if not scope.limit.is_none]


def tenant_scope(tenant_id: int, limit: Limit) -> Scope:
    return Scope("tenant", f"tenant.{tenant_id}", limit)


def user_scope(tenant_id: int, end_user: str, limit: Limit) -> Scope:
    """Redis is told no names."""
    return Scope("user", f"user.{tenant_id}.{user_digest(end_user)}", limit)


def user_digest(end_user: str) -> str:
    return hashlib.sha256(end_user.encode("utf-8", "surrogatepass")).hexdigest()[:24]


@asynccontextmanager
async def counted(
    gateway: Gateway,
    principal: Principal,
    end_user: str,
    session_id: UUID,
    usage: Usage | None = None,
) -> AsyncGenerator[None]:
    """Count a new session, and hold its slots from here on; all is given back if the block fails.

    ``usage`` is told how the limits stand. Raises ``RateLimited``, and ``ShuttingDown`` for who was
    waiting when the process was told to end.
    """
    scopes = scopes_of(principal, end_user)
    if not scopes:
        yield
        return
    rates = rates_of(scopes)
    await _take(gateway, scopes, rates, usage)
    try:
        await take_slot(
            gateway, principal, user_digest(end_user) if end_user else "", session_id, scopes
        )
        yield
    except BaseException:  # refused, or its client has left: nothing has begun
        gateway.allowances.drop(session_id)
        gateway.spawn(gateway.allowances.give_back(rates), "give back")
        raise


async def count_mint(gateway: Gateway, principal: Principal) -> None:
    """Count a new embed token of a key; each is stored and audited, whether it is used or not.

    As many are admitted as requests, in buckets of their own: who mints takes nothing from the
    answers. Raises ``RateLimited``.
    """
    scopes = scopes_of(principal, "")
    rates = [
        Rate(f"{MINTS}.{scope.name}", limit, 1)
        for scope in scopes
        if (limit := scope.limit.requests_per_minute) is not None
    ]
    await _take(gateway, scopes, rates, None)


async def look(gateway: Gateway, principal: Principal, end_user: str, usage: Usage) -> None:
    """Tell ``usage`` how the limits stand; nothing is taken."""
    scopes = scopes_of(principal, end_user)
    rates = rates_of(scopes, amount=0)
    if rates:
        _, levels = await gateway.allowances.admit(rates)
        _tell(usage, rates, levels)


def rates_of(scopes: Sequence[Scope], amount: int = 1) -> list[Rate]:
    """The buckets of all scopes: a request takes ``amount`` of requests and has to find tokens left."""
    found = []
    for scope in scopes:
        if (limit := scope.limit.requests_per_minute) is not None:
            found.append(Rate(f"requests.{scope.name}", limit, amount))
        if (limit := scope.limit.tokens_per_minute) is not None:
            found.append(Rate(f"tokens.{scope.name}", limit, 0))
    return found


async def _take(
    gateway: Gateway, scopes: Sequence[Scope], rates: Sequence[Rate], usage: Usage | None
) -> None:
    if not rates:
        return
    admitted, levels = await gateway.allowances.admit(rates)
    if usage is not None:
        _tell(usage, rates, levels)
    if admitted:
        return
    rate, figure = max(
        zip(rates, _figures(rates, levels), strict=True), key=lambda pair: pair[1].wait_seconds
    )
    unit, _, name = rate.name.partition(".")
    kind = next(scope.kind for scope in scopes if scope.name == name)
    RATE_LIMITED.add(1, unit)
    told = WORDS.get(unit, unit)
    raise RateLimited(
        f"Rate limit reached for {OWNERS[kind]}: {figure.limit} {told} per minute, {figure.used} used."
        f" Please try again in {duration(figure.wait_seconds)}.",
        retry_after=figure.wait_seconds,
    )


def _figures(rates: Sequence[Rate], levels: Sequence[int]) -> list[Figure]:
    return [Figure(rate.per_minute, level) for rate, level in zip(rates, levels, strict=True)]


def _tell(usage: Usage, rates: Sequence[Rate], levels: Sequence[int]) -> None:
    figures: dict[str, Any] = {unit: [] for unit in UNITS}
    for rate, figure in zip(rates, _figures(rates, levels), strict=True):
        figures[rate.name.partition(".")[0]].append(figure)
    usage.requests, usage.tokens = (
        tightest(figures[unit]) if figures[unit] else None for unit in UNITS
    )
