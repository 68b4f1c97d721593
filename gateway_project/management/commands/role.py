"""``manage.py role list | give ROLE USER [--tenant NAME …] | take ROLE USER``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from gateway_project import staff
from gateway_project.roles import ROLES
from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.models import TenantMember
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = "Give staff a role, or take it away. Without arguments: who has which."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", nargs="?", default="list", choices=["list", "give", "take"])
        parser.add_argument("role", nargs="?", help=f"{', '.join(ROLES)}, or a group of your own")
        parser.add_argument("user", nargs="?", help="the name that they log in with")
        parser.add_argument(
            "--tenant",
            action="append",
            default=[],
            help="a tenant that they see; several times. Not with roles that see all tenants",
        )

    def handle(self, **options: Any) -> None:
        what, role, user = (options[name] for name in ("what", "role", "user"))
        if what == "list":
            self.stdout.write(_everybody())
            return
        if not role or not user:
            raise CommandError(f"Say which role and whose: manage.py role {what} support alice.")
        try:
            if what == "give":
                staff.give_role(user, role, tenants=options["tenant"], by=operator_name())
                self.stdout.write(f"{user} has the role {role}.")
                self._say_what_is_seen(user)
            else:
                staff.take_role(user, role, by=operator_name())
                self.stdout.write(f"{user} no longer has the role {role}.")
        except Refused as refusal:
            raise CommandError(str(refusal)) from refusal

    def _say_what_is_seen(self, name: str) -> None:
        user = staff.person_of(name)
        if user.is_superuser:
            self.stdout.write("They are a superuser: they may do everything, whatever their roles.")
        elif user.has_perm("streaming.all_tenants"):
            self.stdout.write("They see all tenants.")
        else:
            self.stdout.write(f"They see these tenants: {_tenants_of(user) or 'none'}.")


def _everybody() -> str:
    rows = [
        (
            user.username,
            ", ".join(_roles_of(user)) or "-",
            "all" if user.has_perm("streaming.all_tenants") else _tenants_of(user) or "none",
        )
        for user in User.objects.filter(is_staff=True, is_active=True).order_by("username")
    ]
    return table(("USER", "ROLES", "TENANTS"), rows)


def _roles_of(user: User) -> list[str]:
    roles = list(user.groups.order_by("name").values_list("name", flat=True))
    return ["superuser", *roles] if user.is_superuser else roles


def _tenants_of(user: User) -> str:
    members = TenantMember.objects.filter(user=user).order_by("tenant__name")
    return ", ".join(members.values_list("tenant__name", flat=True))
