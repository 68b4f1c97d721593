"""API keys: made, listed, revoked, rotated. A secret is seen once, when it is made.

``by`` is the actor that the audit log names.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from streaming.models import ApiKey, Tenant
from streaming.services import audit
from streaming.services.refused import Refused

LIMITS = ("requests_per_minute", "tokens_per_minute", "streams_at_once")
PREFIX_LENGTH = 12  # "ub-live-" and four characters: enough to tell keys apart, no help in guessing


def create_api_key(
    *,
    tenant_name: str,
    name: str = "",
    is_test: bool = False,
    on_disconnect: str = ApiKey.OnDisconnect.SUSPEND,
    expires_in: timedelta | None = None,
    by: str = audit.SYSTEM,
) -> tuple[ApiKey, str]:
    """A new key and its secret, of a tenant that is created when it is new. Raises ``Refused``."""
    if expires_in is not None and expires_in <= timedelta():
        raise Refused("A key has to be valid for some time.")
    with transaction.atomic():
        tenant = _tenant(tenant_name, by)
        return _new_key(
            by,
            tenant=tenant,
            name=name,
            is_test=is_test,
            on_disconnect=on_disconnect,
            expires_at=timezone.now() + expires_in if expires_in else None,
        )


def list_api_keys(*, tenant_name: str | None = None) -> QuerySet[ApiKey]:
    """All keys, or those of one tenant, oldest first. Raises ``Refused`` for an unknown tenant."""
    keys = ApiKey.objects.select_related("tenant", "replaced_by").order_by("tenant__name", "id")
    if tenant_name is None:
        return keys
    if not Tenant.objects.filter(name=tenant_name).exists():
        raise Refused(f"There is no tenant {tenant_name!r}.")
    return keys.filter(tenant__name=tenant_name)


def revoke_api_key(prefix_or_id: str, *, by: str = audit.SYSTEM) -> ApiKey:
    """End a key now; gateways notice within ``AUTH_CACHE_SECONDS``. Raises ``Refused``."""
    with transaction.atomic():
        key = find_api_key(prefix_or_id)
        if key.revoked_at is not None:
            raise Refused(
                f"{key.prefix}… was revoked before, at {key.revoked_at:%Y-%m-%d %H:%M} UTC."
            )
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        announce(key, "key.revoke", by)
    return key


def rotate_api_key(
    prefix_or_id: str, overlap: timedelta, *, by: str = audit.SYSTEM
) -> tuple[ApiKey, str]:
    """A new key with the attributes of an old one, which stays valid for ``overlap`` at most.

    A key with an expiry date is followed by one with the same time to live. Raises ``Refused``.
    """
    if overlap < timedelta():
        raise Refused("The overlap cannot be negative.")
    with transaction.atomic():
        old = find_api_key(prefix_or_id)
        now = timezone.now()
        if not old.is_active(now):
            raise Refused(f"{old.prefix}… is no longer valid: create a new key instead.")
        if old.replaced_by is not None:
            raise Refused(f"{old.prefix}… was rotated before, to {old.replaced_by.prefix}….")
        new, secret = _new_key(
            by,
            tenant=old.tenant,
            name=old.name,
            is_test=old.is_test,
            on_disconnect=old.on_disconnect,
            cost_centre=old.cost_centre,
            level=old.level,
            **{name: getattr(old, name) for name in LIMITS},
            expires_at=now + (old.expires_at - old.created_at) if old.expires_at else None,
        )
        old.replaced_by = new
        old.expires_at = min(old.expires_at or now + overlap, now + overlap)
        old.save(update_fields=["replaced_by", "expires_at"])
        announce(old, "key.rotate", by, replaced_by=new.prefix, expires_at=old.expires_at)
    return new, secret


def find_api_key(prefix_or_id: str) -> ApiKey:
    """The key with this id, or whose prefix starts so; locked. Raises ``Refused`` unless it is one."""
    keys = ApiKey.objects.select_related("tenant").select_for_update(of=("self",))
    if prefix_or_id.isdecimal():
        found = list(keys.filter(pk=prefix_or_id))
    else:
        found = list(keys.filter(prefix__startswith=prefix_or_id[:PREFIX_LENGTH])[:10])
    if not found or not prefix_or_id:
        raise Refused(f"There is no API key {_harmless(prefix_or_id)!r}.")
    if len(found) > 1:
        ids = ", ".join(str(key.pk) for key in found)
        raise Refused(
            f"Several keys begin with {_harmless(prefix_or_id)!r}: name one by id ({ids})."
        )
    return found[0]


def issue(key: ApiKey, *, by: str = audit.SYSTEM) -> str:
    """Give a key that is not saved yet its secret, and save it. Raises ``Refused``."""
    secret = f"ub-{'test' if key.is_test else 'live'}-{secrets.token_urlsafe(32)}"
    key.prefix = secret[:PREFIX_LENGTH]
    key.key_hash = key_hash(secret)
    try:
        key.clean_fields()
    except ValidationError as exc:
        raise Refused(" ".join(exc.messages)) from exc
    with transaction.atomic():
        key.save(force_insert=True)
        announce(
            key, "key.create", by,
            is_test=key.is_test, on_disconnect=key.on_disconnect, expires_at=key.expires_at,
            level=key.level, **{name: getattr(key, name) for name in LIMITS if getattr(key, name) is not None},
        )  # fmt: skip
    return secret


def announce(key: ApiKey, action: str, by: str, **data: Any) -> None:
    """Have the audit log tell what was done to a key; in the same transaction."""
    audit.announce(
        action, actor=by, subject=f"key:{key.prefix}", tenant_id=key.tenant_id, id=key.pk, **data
    )


def key_hash(secret: str) -> str:
    """What is stored of a secret. 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _harmless(prefix_or_id: str) -> str:
    """Somebody may have typed the whole secret: messages repeat no more than the prefix."""
    return prefix_or_id[:PREFIX_LENGTH]


def _tenant(name: str, by: str) -> Tenant:
    tenant = Tenant(name=name)
    try:
        tenant.clean_fields()
    except ValidationError as exc:
        raise Refused(f"Tenant {name!r}: {' '.join(exc.messages)}") from exc
    tenant, is_new = Tenant.objects.get_or_create(name=name)
    if is_new:
        audit.announce("tenant.create", actor=by, subject=f"tenant:{name}", tenant_id=tenant.pk)
    return tenant


def _new_key(by: str, **columns: Any) -> tuple[ApiKey, str]:
    key = ApiKey(**columns)
    return key, issue(key, by=by)
