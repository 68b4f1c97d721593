"""``manage.py end_user export|erase --tenant NAME --user ID``."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.operator import operator_name
from streaming.models import Tenant
from streaming.services import retention
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = (
        "Everything that is stored of one end user of a tenant: write it out as JSON lines, or"
        " forget it. Erasing stops what lives, cannot be undone, and asks before it begins."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=["export", "erase"])
        parser.add_argument("--tenant", required=True, help="its name")
        parser.add_argument("--user", required=True, help="the end user, as the tenant calls them")
        parser.add_argument("--yes", action="store_true", help="erase without asking")

    def handle(self, **options: Any) -> None:
        tenant = Tenant.objects.filter(name=options["tenant"]).first()
        if tenant is None:
            raise CommandError(f"There is no tenant called {options['tenant']}.")
        user = options["user"]
        try:
            if options["what"] == "export":
                for piece in retention.export_end_user(tenant.pk, user, by=operator_name()):
                    self.stdout.write(json.dumps(piece, ensure_ascii=False))
                return
            if not options["yes"] and _typed(user) != user:
                raise CommandError("Nothing was erased.")
            count = retention.erase_end_user(tenant.pk, user, by=operator_name())
        except Refused as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"Erased: {count} sessions.")


def _typed(user: str) -> str:
    try:
        return input(f"Type {user} to erase all of it: ")
    except EOFError:  # nobody is there to type
        raise CommandError("Nothing was erased: --yes does it without asking.") from None
