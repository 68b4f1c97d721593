"""``manage.py rebuild_usage [--dry-run] [--tenant T] [--period P]``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.services import rebuild
from streaming.models import Tenant


class Command(BaseCommand):
    help = (
        "Compute usage anew from sessions, logs and attempts, and settle what is missing or"
        " different. Nothing that was settled is changed. Exits with 1 when differences remain."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only list the differences")
        parser.add_argument("--tenant", default="", help="only this one's sessions")
        parser.add_argument("--period", default="", help="sessions that lived in it, like 2026-11")

    def handle(self, **options: Any) -> None:
        scope = {"tenant": options["tenant"], "period": options["period"]}
        try:
            if options["dry_run"]:
                self._list(scope)
            else:
                self._rebuild(scope)
        except Tenant.DoesNotExist:
            raise CommandError(f"There is no tenant {options['tenant']!r}.") from None
        except ValueError as exc:
            raise CommandError(str(exc)) from exc

    def _list(self, scope: dict[str, str]) -> None:
        sessions = waiting = different = 0
        for compared in rebuild.compare(**scope):
            sessions += 1
            if compared.waits:  # it is about to be settled
                waiting += 1
            elif compared.differences:
                different += 1
                self.stdout.write(str(compared))
        told = f"{sessions} sessions compared, {waiting} of them wait to be settled"
        if different:
            raise CommandError(f"{different} differ: {told}.")
        self.stdout.write(f"No difference: {told}.")

    def _rebuild(self, scope: dict[str, str]) -> None:
        settled = different = 0
        for before, after in rebuild.rebuild(**scope):
            settled += 1
            if before.differences:
                self.stdout.write(str(before))
            if after.differences and not after.waits:
                different += 1
                self.stdout.write(f"still different: {after}")
        if different:
            raise CommandError(f"{settled} sessions settled, {different} of them still differ.")
        self.stdout.write(f"{settled} sessions settled, no difference remains.")
