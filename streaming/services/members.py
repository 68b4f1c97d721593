"""Which members of staff see which tenants."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from streaming.models import Tenant, TenantMember
from streaming.services import audit


@transaction.atomic
def add_member(user: User, tenant: Tenant, *, by: str) -> None:
    """Let somebody see a tenant. Done again it changes nothing."""
    member, made = TenantMember.objects.get_or_create(user=user, tenant=tenant)
    if made:
        note_member(member, "given", by=by)


def note_member(member: TenantMember, did: str, *, by: str) -> None:
    """Have it audited that somebody sees a tenant (``given``), or no longer does (``taken``)."""
    audit.announce(
        f"staff.tenant_{did}",
        actor=by,
        subject=f"user:{member.user.get_username()}",
        tenant_id=member.tenant_id,
        tenant=member.tenant.name,
    )
