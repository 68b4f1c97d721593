"""Changing which web pages may embed a tenant's chat, besides the tenant's page in the admin."""

from __future__ import annotations

from django.db import transaction

from streaming.core.origins import origin_of
from streaming.models import Tenant
from streaming.services import audit
from streaming.services.refused import Refused


def list_origins(tenant_name: str) -> list[str]:
    """``scheme://host[:port]`` each. Raises ``Refused`` when there is no such tenant."""
    return list(_tenant(tenant_name, hold=False).allowed_origins)


@transaction.atomic
def allow_origins(tenant_name: str, origins: list[str], *, by: str = audit.SYSTEM) -> list[str]:
    """Allow these too; those that are allowed then. Raises ``Refused`` for what is no origin."""
    tenant = _tenant(tenant_name)
    wanted = [_spelled(origin) for origin in origins]
    return _set(tenant, list(dict.fromkeys([*tenant.allowed_origins, *wanted])), by)


@transaction.atomic
def remove_origins(tenant_name: str, origins: list[str], *, by: str = audit.SYSTEM) -> list[str]:
    """Allow these no longer; those that are left. Raises ``Refused`` for one that was not allowed."""
    tenant = _tenant(tenant_name)
    unwanted = [_spelled(origin) for origin in origins]
    for origin in unwanted:
        if origin not in tenant.allowed_origins:
            raise Refused(f"{origin} is not an allowed origin of tenant {tenant_name}.")
    return _set(tenant, [one for one in tenant.allowed_origins if one not in unwanted], by)


def _set(tenant: Tenant, origins: list[str], by: str) -> list[str]:
    before = {"allowed_origins": tenant.allowed_origins}
    after = {"allowed_origins": origins}
    if before != after:
        tenant.allowed_origins = origins
        tenant.save(update_fields=["allowed_origins"])
        audit.announce(
            "tenant.change",
            actor=by,
            subject=f"tenant:{tenant.name}",
            tenant_id=tenant.pk,
            columns="allowed_origins",
            **audit.changes(before, after),
        )
    return origins


def _tenant(name: str, *, hold: bool = True) -> Tenant:
    rows = Tenant.objects.select_for_update() if hold else Tenant.objects.all()
    tenant = rows.filter(name=name).first()
    if tenant is None:
        raise Refused(f"There is no tenant {name!r}.")
    return tenant


def _spelled(origin: str) -> str:
    try:
        return origin_of(origin)
    except ValueError as exc:
        raise Refused(f"{origin:.80}: {exc}.") from None
