"""Model aliases: names that clients may ask for, of all tenants or of one."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from streaming.models import ModelAlias, Tenant
from streaming.services import audit
from streaming.services.refused import Refused


@transaction.atomic
def set_alias(
    *, alias: str, model: str, tenant_name: str | None = None, by: str = audit.SYSTEM
) -> ModelAlias:
    """Let ``alias`` stand for ``model``, whatever it stood for before. Raises ``Refused``."""
    tenant = _tenant(tenant_name)
    try:
        ModelAlias(tenant=tenant, alias=alias, model=model).clean_fields()
    except ValidationError as exc:
        raise Refused(" ".join(exc.messages)) from exc
    row, _ = ModelAlias.objects.update_or_create(
        tenant=tenant, alias=alias, defaults={"model": model}
    )
    announce(row, "alias.set", by)
    return row


@transaction.atomic
def remove_alias(*, alias: str, tenant_name: str | None = None, by: str = audit.SYSTEM) -> None:
    """Raises ``Refused`` when there is no such alias."""
    row = ModelAlias.objects.filter(tenant=_tenant(tenant_name), alias=alias).first()
    if row is None:
        owner = f"tenant {tenant_name}" if tenant_name else "all tenants"
        raise Refused(f"There is no alias {alias!r} for {owner}.")
    announce(row, "alias.remove", by)
    row.delete()


def announce(row: ModelAlias, action: str, by: str) -> None:
    """Have the audit log tell what was done to an alias; in the same transaction."""
    audit.announce(
        action, actor=by, subject=f"alias:{row.alias}", tenant_id=row.tenant_id, model=row.model
    )


def list_aliases(*, tenant_name: str | None = None) -> QuerySet[ModelAlias]:
    """All aliases; or those that a tenant has of its own. Raises ``Refused``."""
    rows = ModelAlias.objects.select_related("tenant").order_by("alias", "tenant__name")
    return rows.filter(tenant=_tenant(tenant_name)) if tenant_name else rows


def _tenant(name: str | None) -> Tenant | None:
    if name is None:
        return None
    try:
        return Tenant.objects.get(name=name)
    except Tenant.DoesNotExist as exc:
        raise Refused(f"There is no tenant {name!r}.") from exc
