"""``manage.py model_alias set|list|remove``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.services.aliases import list_aliases, remove_alias, set_alias
from streaming.services.refused import Refused
from streaming.services.switches import served_models


class Command(BaseCommand):
    help = "Names that clients may ask for, and the served models they stand for."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        put = actions.add_parser("set", help="let a name stand for a model")
        put.add_argument("alias")
        put.add_argument("model")
        show = actions.add_parser("list", help="all aliases")
        remove = actions.add_parser("remove", help="forget an alias")
        remove.add_argument("alias")
        for action in (put, show, remove):
            action.add_argument(
                "--tenant", help="a tenant's own alias, which wins over everybody's"
            )

    def handle(self, **options: Any) -> None:
        tenant = options["tenant"]
        try:
            match options["action"]:
                case "set":
                    row = set_alias(
                        alias=options["alias"], model=options["model"], tenant_name=tenant,
                        by=operator_name(),
                    )  # fmt: skip
                    self.stdout.write(f"{row} for {tenant or 'all tenants'}")
                    if row.model not in served_models():
                        self.stdout.write(f"No node was seen serving {row.model} so far.")
                case "remove":
                    remove_alias(alias=options["alias"], tenant_name=tenant, by=operator_name())
                    self.stdout.write(f"Removed {options['alias']} for {tenant or 'all tenants'}.")
                case "list":
                    self._list(tenant)
        except Refused as exc:
            raise CommandError(str(exc)) from exc

    def _list(self, tenant: str | None) -> None:
        rows = [
            (row.alias, row.model, row.tenant.name if row.tenant else "(all)")
            for row in list_aliases(tenant_name=tenant)
        ]
        self.stdout.write(
            table(("ALIAS", "MODEL", "TENANT"), rows) if rows else "There are no model aliases."
        )
