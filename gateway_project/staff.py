"""Giving roles to people and taking them away, audited. Commands and the admin call these."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import Group, User
from django.db import transaction

from gateway_project.roles import ROLES
from streaming.models import Tenant
from streaming.services import audit
from streaming.services.members import add_member
from streaming.services.refused import Refused


def person_of(name: str) -> User:
    """The user of that name. Raises ``Refused`` where there is none."""
    user = User.objects.filter(username=name).first()
    if user is None:
        raise Refused(f"There is no user {name}; manage.py createsuperuser makes the first.")
    return user


@transaction.atomic
def give_role(name: str, role: str, *, tenants: Iterable[str] = (), by: str) -> None:
    """Let somebody into the admin with a role, and make them a member of ``tenants``.

    Raises ``Refused`` for an unknown user, role or tenant, and for tenants with a role that sees all:
    whoever names them means to narrow it, and nothing would. Given again it changes nothing.
    """
    user, group = person_of(name), _group_of(role)
    tenants = list(tenants)
    sees_all = {"codename": "all_tenants", "content_type__app_label": "streaming"}
    if tenants and group.permissions.filter(**sees_all).exists():
        raise Refused(
            f"Whoever has the role {role} sees all tenants, so it cannot be given for"
            f" {', '.join(tenants)} only. Leave the tenants out, or give another role."
        )
    rows = [_tenant_of(tenant) for tenant in tenants]
    if not user.is_staff:
        user.is_staff = True
        user.save(update_fields=["is_staff"])
    if not user.groups.filter(pk=group.pk).exists():
        user.groups.add(group)
        audit.announce("staff.role_given", actor=by, subject=_subject(user), role=role)
    for tenant in rows:
        add_member(user, tenant, by=by)


@transaction.atomic
def take_role(name: str, role: str, *, by: str) -> None:
    """Take a role from somebody. Memberships stay. Raises ``Refused``, as ``give_role`` does."""
    user, group = person_of(name), _group_of(role)
    if user.groups.filter(pk=group.pk).exists():
        user.groups.remove(group)
        audit.announce("staff.role_taken", actor=by, subject=_subject(user), role=role)


def _group_of(role: str) -> Group:
    group = Group.objects.filter(name=role).first()
    if group is None:
        raise Refused(f"There is no role {role}; there are {', '.join(ROLES)}.")
    return group


def _tenant_of(name: str) -> Tenant:
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        raise Refused(f"There is no tenant {name}.")
    return tenant


def _subject(user: User) -> str:
    return f"user:{user.username}"
