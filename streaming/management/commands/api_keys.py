"""``manage.py api_keys list|revoke|rotate``."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.models import ApiKey
from streaming.services.api_keys import list_api_keys, revoke_api_key, rotate_api_key
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = "List, revoke and rotate API keys. A key is named by its id or the start of its prefix."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        show = actions.add_parser("list", help="all keys, or those of a tenant")
        show.add_argument("--tenant")
        revoke = actions.add_parser("revoke", help="end a key now")
        revoke.add_argument("key")
        rotate = actions.add_parser("rotate", help="replace a key; the last line is the new one")
        rotate.add_argument("key")
        rotate.add_argument(
            "--overlap-hours", type=float, default=24.0, metavar="H",
            help="how long the old key stays valid (default: %(default)g)",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        try:
            match options["action"]:
                case "list":
                    self._list(options["tenant"])
                case "revoke":
                    key = revoke_api_key(options["key"], by=operator_name())
                    self.stdout.write(f"Revoked {key.prefix}… of tenant {key.tenant.name}.")
                case "rotate":
                    self._rotate(options["key"], timedelta(hours=options["overlap_hours"]))
        except Refused as exc:
            raise CommandError(str(exc)) from exc

    def _list(self, tenant: str | None) -> None:
        now = timezone.now()
        rows = [
            (
                str(key.pk), f"{key.prefix}…", key.tenant.name, key.name or "-", status(key, now),
                "test" if key.is_test else "live", key.on_disconnect,
                f"{key.created_at:%Y-%m-%d}",
            )
            for key in list_api_keys(tenant_name=tenant)
        ]  # fmt: skip
        head = ("ID", "PREFIX", "TENANT", "NAME", "STATUS", "KIND", "ON DISCONNECT", "CREATED")
        self.stdout.write(table(head, rows) if rows else "There are no API keys.")

    def _rotate(self, key: str, overlap: timedelta) -> None:
        new, secret = rotate_api_key(key, overlap, by=operator_name())
        old = new.replaces.get()
        self.stderr.write(
            f"{old.prefix}… of tenant {new.tenant.name} is valid until {old.expires_at:%Y-%m-%d %H:%M}"
            f" UTC; the new key is {new.pk}. Keep it: it is not shown again."
        )
        self.stdout.write(secret)


def status(key: ApiKey, now: datetime) -> str:
    """Whether a key opens anything, in words."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None:
        return "active"
    word = "active until" if key.is_active(now) else "expired"
    return f"{word} {key.expires_at:%Y-%m-%d %H:%M}"
