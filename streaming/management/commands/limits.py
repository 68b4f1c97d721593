"""``manage.py limits [TENANT] [--user NAME]``: the limits in force, and what is used of them now."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.table import table
from streaming.models import Tenant
from streaming.services.limit_figures import Use, limited_tenants, limits_in_use


class Command(BaseCommand):
    help = "Limits of rate and of streams at once: what is in force, and what is used now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", nargs="?", help="its name; without: all that have limits")
        parser.add_argument("--user", default="", help="an end user of the tenant, to look at too")

    def handle(self, **options: Any) -> None:
        name, user = options["tenant"], options["user"]
        if user and not name:
            raise CommandError("Say of which tenant that is an end user.")
        tenants = list(Tenant.objects.filter(name=name)) if name else limited_tenants()
        if name and not tenants:
            raise CommandError(f"There is no tenant {name!r}.")
        rows = []
        for tenant in tenants:
            uses = limits_in_use(tenant, user)
            if uses is None:
                raise CommandError("What is used stands in Redis, which cannot be asked.")
            rows += [(tenant.name, use.name, *_cells(use)) for use in uses]
        head = ("TENANT", "LIMIT OF", "REQUESTS/MIN", "TOKENS/MIN", "STREAMS", "WAITING")
        self.stdout.write(table(head, rows) if rows else "Nothing is limited.")


def _cells(use: Use) -> tuple[str, ...]:
    figures = [
        f"{figure.used} of {figure.limit}" if figure is not None else "-"
        for figure in (use.requests, use.tokens)
    ]
    streams = "{} of {}".format(*use.streams) if use.streams is not None else "-"
    return *figures, streams, str(use.waiting or "-")
