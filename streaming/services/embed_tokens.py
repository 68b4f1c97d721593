"""Embed tokens: minted by a product's backend, held by one end user's browser, read at every request.

The token's text is its id, its expiry and a digest of its end user, signed: what is forged, tampered with or too old is refused
before anything is looked up. What it allows is in its row (``EmbedToken``).
"""

from __future__ import annotations

import asyncio
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.core import signing
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac
from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.chat import parse_chat_request
from streaming.core.embedding import PREFIX, EmbedOrder, Overridden, merged
from streaming.core.ids import uuid7
from streaming.core.levels import Level
from streaming.core.limits import Limit
from streaming.errors import (
    AuthenticationFailed,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    NotPermitted,
    TokenExpired,
)
from streaming.models import EmbedToken
from streaming.runtime.gateway import Gateway
from streaming.runtime.live import EmbedGrant, Principal
from streaming.services import audit
from streaming.services.chat_requests import read_json, read_with
from streaming.services.rate_limits import count_mint
from streaming.services.refused import Refused

MAX_TOKEN_LENGTH = 255
KEPT = timedelta(days=1)
"""How long the row of a token that is over is kept, for whoever wonders."""

_signer = signing.TimestampSigner(salt="unbroken.embed", sep=".")
_READER_SALT = "unbroken.embed.reader"
_CACHE_ENTRIES = 10_000

# A token is never good for longer than its key.
_MINT = """
INSERT INTO streaming_embedtoken (id, tenant_id, api_key_id, end_user, origin, models_allowed, preset,
    level, variant, requests_per_minute, tokens_per_minute, streams_at_once, created_at, expires_at)
SELECT %(id)s, k.tenant_id, k.id, %(end_user)s, %(origin)s, %(models)s::jsonb, %(preset)s::jsonb,
    %(level)s, %(variant)s, %(requests)s, %(tokens)s, %(streams)s, now(),
    date_trunc('second', least(now() + make_interval(secs => %(seconds)s), k.expires_at))
FROM streaming_apikey k
WHERE k.id = %(key)s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
RETURNING expires_at
"""
_LOOKUP = """
SELECT e.expires_at <= now(), e.tenant_id, t.name, e.api_key_id, e.end_user, k.is_test, k.on_disconnect, k.level, e.level,
    e.variant, t.allowed_origins, e.origin, e.models_allowed, e.preset, e.expires_at,
    e.requests_per_minute, e.tokens_per_minute, e.streams_at_once,
    k.requests_per_minute, k.tokens_per_minute, k.streams_at_once,
    t.requests_per_minute, t.tokens_per_minute, t.streams_at_once,
    t.user_requests_per_minute, t.user_tokens_per_minute, t.user_streams_at_once
FROM streaming_embedtoken e JOIN streaming_apikey k ON k.id = e.api_key_id
JOIN streaming_tenant t ON t.id = e.tenant_id
WHERE e.id = %s AND e.revoked_at IS NULL
AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
"""
_REVOKE = """
UPDATE streaming_embedtoken SET revoked_at = coalesce(revoked_at, now())
WHERE id = %s AND tenant_id = %s
RETURNING revoked_at = now()
"""


@dataclass(frozen=True, slots=True)
class Minted:
    """``token`` is seen this once."""

    id: UUID
    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Cached:
    principal: Principal
    until: float


_cache: dict[UUID, _Cached] = {}


async def mint(gateway: Gateway, principal: Principal, order: EmbedOrder) -> Minted:
    """A token of the principal's own tenant. Raises ``NotPermitted``, ``InvalidRequest``,
    ``RateLimited``.

    Only an API key mints: neither an embed token nor the demo page's visitor does. The origin must
    be one of the tenant's.
    """
    check_may_mint(principal)
    if order.origin and order.origin not in principal.origins:
        raise InvalidRequest(
            "origin is not one of the allowed origins of this tenant.", param="origin"
        )
    if order.level is not None and not principal.level.covers(order.level):
        raise NotPermitted(
            f"This key's level is {principal.level.value}: its tokens' cannot be higher.",
            param="level",
        )
    await count_mint(gateway, principal)
    token_id = uuid7()
    row = {
        "id": token_id,
        "key": principal.api_key_id,
        "end_user": order.user,
        "origin": order.origin,
        "models": json.dumps(order.models),
        "preset": json.dumps(dict(order.preset)),
        "level": order.level.value if order.level else "",
        "variant": order.variant,
        "requests": order.limit.requests_per_minute,
        "tokens": order.limit.tokens_per_minute,
        "streams": order.limit.streams_at_once,
        "seconds": order.seconds,
    }
    async with gateway.pool.connection() as connection, connection.transaction():
        cursor = await connection.execute(_MINT, row)
        found = await cursor.fetchone()
        if found is None:
            raise AuthenticationFailed("Incorrect API key provided.")
        (expires_at,) = found
        await audit.announce_async(
            connection,
            "embed_token.mint",
            actor=f"key:#{principal.api_key_id}",
            subject=f"embed:{token_id}",
            tenant_id=principal.tenant_id,
            origin=order.origin,
            models=list(order.models),
            expires_at=expires_at,
            has_preset=bool(order.preset),
            level=row["level"],
            variant=order.variant,
        )
    reader = _reader(principal.tenant_id, order.user)
    return Minted(token_id, _text(token_id, expires_at, reader), expires_at)


async def revoke(gateway: Gateway, principal: Principal, token_id: UUID) -> None:
    """End a token now, for good; gateways notice within ``AUTH_CACHE_SECONDS``.

    Doing it twice does no harm. Raises ``NotPermitted``, and ``NotFound`` for those of others.
    """
    check_may_mint(principal)
    async with gateway.pool.connection() as connection, connection.transaction():
        cursor = await connection.execute(_REVOKE, (token_id, principal.tenant_id))
        row = await cursor.fetchone()
        if row is None:
            raise NotFound("There is no such embed token.")
        if row[0]:
            await audit.announce_async(
                connection,
                "embed_token.revoke",
                actor=f"key:#{principal.api_key_id}",
                subject=f"embed:{token_id}",
                tenant_id=principal.tenant_id,
            )
    _cache.pop(token_id, None)


def revoke_by_hand(token: EmbedToken, *, by: str) -> None:
    """The same, by staff. Raises ``Refused`` for what is over already."""
    with transaction.atomic():
        held = EmbedToken.objects.select_for_update().get(pk=token.pk)
        if not held.is_active(timezone.now()):
            raise Refused("This token is over already.")
        held.revoked_at = timezone.now()
        held.save(update_fields=["revoked_at"])
        audit.announce(
            "embed_token.revoke", actor=by, subject=f"embed:{held.pk}", tenant_id=held.tenant_id
        )


async def read(pool: AsyncConnectionPool, token: str) -> Principal:
    """Who holds this token; a good one is trusted for ``auth_cache_seconds``, never past its expiry.

    Raises ``TokenExpired`` and, for what is forged or revoked, ``AuthenticationFailed``.
    """
    token_id, expires_at = _read_text(token)
    if expires_at <= datetime.now(UTC):
        raise TokenExpired
    now = asyncio.get_running_loop().time()
    cached = _cache.get(token_id)
    if cached is not None and cached.until > now:
        return cached.principal
    async with pool.connection() as connection:
        cursor = await connection.execute(_LOOKUP, (token_id,))
        row = await cursor.fetchone()
    if row is None:
        _cache.pop(token_id, None)
        raise AuthenticationFailed("This embed token has been revoked.")
    is_over, *columns = row
    if is_over:
        raise TokenExpired
    principal = _principal(token_id, columns)
    if len(_cache) >= _CACHE_ENTRIES:
        _cache.clear()
    _cache[token_id] = _Cached(principal, now + conf().auth_cache_seconds)
    return principal


def apply_grant(principal: Principal, body: bytes) -> bytes:
    """The request that is asked for when ``principal`` sends ``body``, a chat request as JSON.

    Without an embed token: the body itself. Else the token's preset is merged in, here, so that
    whoever takes the session over has it too. Raises ``NotPermitted`` where the browser sets what
    the token has set, ``ModelNotFound``, and what a malformed request raises.
    """
    grant = principal.embed
    if grant is None:
        return body
    asked = read_json(body)
    if not isinstance(asked, dict):
        return body  # it will be refused
    try:
        result = merged(grant.preset, asked)
    except Overridden as exc:
        raise NotPermitted(str(exc), param=exc.param) from exc
    # What is wrong is told in places of the browser's own body, in which no prompt stands first.
    asked_for = read_with(parse_chat_request, {**result, "messages": asked.get("messages")}).model
    if not allows_model(principal, asked_for):
        raise ModelNotFound(
            f"The model '{asked_for}' does not exist or you do not have access to it.",
            param="model",
        )
    return body if result == asked else orjson.dumps(result)


def allows_model(principal: Principal, name: str) -> bool:
    """Whether the principal may name this model or alias."""
    grant = principal.embed
    if grant is None:
        return True
    forced = grant.preset.get("model")
    if forced:
        return name == forced
    return not grant.models or name in grant.models


def forget_expired() -> int:
    """Remove the rows of tokens that have been over for a day; how many."""
    count, _ = EmbedToken.objects.filter(expires_at__lt=timezone.now() - KEPT).delete()
    return count


def check_may_mint(principal: Principal) -> None:
    """Raises ``NotPermitted`` unless it came with an API key."""
    if principal.embed is not None or principal.api_key_id is None:
        raise NotPermitted("Embed tokens are made and revoked with an API key.")


def _reader(tenant_id: int, end_user: str) -> str:
    """What tells end users apart in a browser, without telling who they are: 16 hexadecimal digits.

    A browser that several people use keeps what it stores of them apart by it.
    """
    return salted_hmac(_READER_SALT, f"{tenant_id}:{end_user}", algorithm="sha256").hexdigest()[:16]


def _text(token_id: UUID, expires_at: datetime, reader: str) -> str:
    return PREFIX + _signer.sign_object([token_id.hex, int(expires_at.timestamp()), reader])


def _read_text(token: str) -> tuple[UUID, datetime]:
    """Raises ``AuthenticationFailed`` for what nobody here has signed."""
    try:
        if len(token) > MAX_TOKEN_LENGTH:
            raise signing.BadSignature
        token_id, expires = _signer.unsign_object(token.removeprefix(PREFIX))[:2]
    except (signing.BadSignature, binascii.Error, UnicodeError):
        raise AuthenticationFailed("Incorrect embed token provided.") from None
    return UUID(token_id), datetime.fromtimestamp(expires, UTC)


def _principal(token_id: UUID, columns: list[Any]) -> Principal:
    (
        tenant_id, tenant, key_id, end_user, is_test, on_disconnect, key_level, level, variant,
        origins, origin, models, preset, expires_at, *limits,
    ) = columns  # fmt: skip
    # The key's may have been lowered since.
    levels = [Level(key_level), *([Level(level)] if level else [])]
    return Principal(
        tenant_id,
        tenant,
        key_id,
        end_user=end_user,
        is_test=is_test,
        on_disconnect=on_disconnect,
        level=max(levels, key=lambda level: level.rank),
        variant=variant,
        limit=Limit(*limits[0:3]),
        tenant_limit=Limit(*limits[6:9]),
        user_limit=Limit(*limits[9:12]),
        origins=tuple(origins),
        embed=EmbedGrant(
            token_id=token_id,
            expires_at=expires_at,
            origin=origin,
            models=tuple(models),
            preset=preset,
            key_limit=Limit(*limits[3:6]),
        ),
    )
