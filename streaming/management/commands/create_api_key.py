"""``manage.py create_api_key --tenant acme``: the last line of its output is the key."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.operator import operator_name
from streaming.models import ApiKey
from streaming.services.api_keys import create_api_key
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = "Create an API key. It is shown once: the last line of the output is the key alone."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", required=True, help="created when it is new")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument(
            "--test", action="store_true", help="may rehearse faults where ALLOW_REHEARSAL is set"
        )
        parser.add_argument(
            "--on-disconnect",
            choices=ApiKey.OnDisconnect.values,
            default=ApiKey.OnDisconnect.SUSPEND.value,
            help="what an answer does when its last reader has gone (default: %(default)s)",
        )
        parser.add_argument("--expires-days", type=int, metavar="N", help="default: never")

    def handle(self, **options: Any) -> None:
        days = options["expires_days"]
        try:
            key, secret = create_api_key(
                tenant_name=options["tenant"],
                name=options["name"],
                is_test=options["test"],
                on_disconnect=options["on_disconnect"],
                expires_in=None if days is None else timedelta(days=days),
                by=operator_name(),
            )
        except Refused as exc:
            raise CommandError(str(exc)) from exc
        until = f"until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else "until revoked"
        self.stderr.write(
            f"Key {key.pk} of tenant {key.tenant.name}, valid {until}. Keep it: it is not shown again."
        )
        self.stdout.write(secret)
