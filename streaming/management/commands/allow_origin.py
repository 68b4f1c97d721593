"""``manage.py allow_origin --tenant NAME [ORIGIN …] [--remove]``: pages that may embed its chat."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.operator import operator_name
from streaming.services.refused import Refused
from streaming.services.tenant_origins import allow_origins, list_origins, remove_origins


class Command(BaseCommand):
    help = "Web pages that may embed a tenant's chat. Gateways notice within AUTH_CACHE_SECONDS."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", required=True, help="its name")
        parser.add_argument(
            "origins", nargs="*", metavar="origin", help="https://shop.example; none: list them"
        )
        parser.add_argument("--remove", action="store_true", help="allow them no longer")

    def handle(self, **options: Any) -> None:
        tenant, origins = options["tenant"], options["origins"]
        if options["remove"] and not origins:
            raise CommandError("Say which origins to remove.")
        try:
            if not origins:
                allowed = list_origins(tenant)
            elif options["remove"]:
                allowed = remove_origins(tenant, origins, by=operator_name())
            else:
                allowed = allow_origins(tenant, origins, by=operator_name())
        except Refused as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write("\n".join(allowed) or "No page of another origin may embed its chat.")
