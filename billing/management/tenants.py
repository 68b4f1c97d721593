"""Tenants as they are named on the command line."""

from __future__ import annotations

from django.core.management.base import CommandError

from streaming.models import Tenant


def tenant_named(name: str) -> Tenant:
    """Raises ``CommandError`` for one that there is not."""
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        raise CommandError(f"There is no tenant {name!r}.")
    return tenant
