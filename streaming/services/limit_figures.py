"""How much of its limits a tenant uses at the moment, for people who look; read from Redis."""

from __future__ import annotations

from dataclasses import dataclass

import redis
from django.conf import settings
from redis.exceptions import RedisError

from streaming.core.gcra import Figure
from streaming.core.limits import Limit, Scope
from streaming.models import ApiKey, Tenant
from streaming.runtime.limit_scripts import PREFIX
from streaming.services.rate_limits import tenant_scope, user_scope

REDIS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Use:
    """A limit in force and what is used of it. ``waiting``: requests of the tenant in its queue."""

    name: str
    requests: Figure | None
    tokens: Figure | None
    streams: tuple[int, int] | None
    waiting: int = 0

    @property
    def words(self) -> str:
        """For example ``12 of 60 requests, 3 of 5 streams``."""
        parts = [
            f"{figure.used:,} of {figure.limit:,} {unit} a minute"
            for unit, figure in (("requests", self.requests), ("tokens", self.tokens))
            if figure is not None
        ]
        if self.streams is not None:
            parts.append(f"{self.streams[0]} of {self.streams[1]} streams at once")
        if self.waiting:
            parts.append(f"{self.waiting} waiting")
        return ", ".join(parts)


def limited_tenants() -> list[Tenant]:
    """Those that have limits, or keys with limits."""
    return [tenant for tenant in Tenant.objects.order_by("name") if _scopes(tenant, "")]


def limits_in_use(tenant: Tenant, end_user: str = "") -> list[Use] | None:
    """The tenant's limits, its keys', and where named one end user's; None: Redis can't be asked."""
    scopes = _scopes(tenant, end_user)
    if not scopes:
        return []
    if not settings.REDIS_URL:
        return None
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
        ) as client:
            return [_use(client, name, scope, tenant) for name, scope in scopes]
    except (RedisError, OSError):
        return None


def _scopes(tenant: Tenant, end_user: str) -> list[tuple[str, Scope]]:
    found = [
        (
            "tenant",
            tenant_scope(
                tenant.pk,
                Limit(tenant.requests_per_minute, tenant.tokens_per_minute, tenant.streams_at_once),
            ),
        )
    ]
    for key in ApiKey.objects.filter(tenant=tenant, revoked_at=None).order_by("pk"):
        limit = Limit(key.requests_per_minute, key.tokens_per_minute, key.streams_at_once)
        found.append((f"key {key.prefix}…", Scope("key", f"key.{key.pk}", limit)))
    if end_user:
        limit = Limit(
            tenant.user_requests_per_minute, tenant.user_tokens_per_minute,
            tenant.user_streams_at_once,
        )  # fmt: skip
        found.append((f"user {end_user}", user_scope(tenant.pk, end_user, limit)))
    return [(name, scope) for name, scope in found if not scope.limit.is_none]


def _use(client: redis.Redis, name: str, scope: Scope, tenant: Tenant) -> Use:
    seconds, microseconds = client.time()
    now = seconds * 1_000_000 + microseconds

    def figure(unit: str, limit: int | None) -> Figure | None:
        if limit is None:
            return None
        empty_at = int(client.get(f"{PREFIX}rate:{unit}.{scope.name}") or 0)
        return Figure(limit, max(0, empty_at - now))

    limit = scope.limit
    streams = None
    if limit.streams_at_once is not None:
        taken = client.zcount(f"{PREFIX}slots:{scope.name}", now, "+inf")
        streams = (int(taken), limit.streams_at_once)
    return Use(
        name,
        figure("requests", limit.requests_per_minute),
        figure("tokens", limit.tokens_per_minute),
        streams,
        int(client.zcard(f"{PREFIX}queue:{tenant.pk}")) if scope.kind == "tenant" else 0,
    )
