"""``manage.py seed_demo``: sessions to look at, where there are none yet."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from billing.services.settlement import settle_due
from gateway_project.demo import calendar, fleet
from gateway_project.demo.copying import COLUMNS, written
from streaming.management.operator import operator_name

SETTLED_UP_TO = 5000
"""Of more sessions than that, billing takes hours: who wants it says so."""


class Command(BaseCommand):
    help = (
        "Make believable sessions: tenants, prices, days and nights, interruptions of every cause."
        " Not for a database that serves real users."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--sessions", type=int, default=2000, metavar="N")
        parser.add_argument("--days", type=float, default=14.0, metavar="D", help="how far back")
        parser.add_argument("--tenants", type=int, default=4, metavar="T")
        parser.add_argument(
            "--seed", type=int, default=1, metavar="S", help="other data by another"
        )
        parser.add_argument(
            "--billing",
            choices=["now", "later", "never"],
            help="settle them at once, have the worker do it, or not at all"
            f" (default: now up to {SETTLED_UP_TO} sessions, else never)",
        )
        parser.add_argument(
            "--beside", action="store_true", help="even if there are sessions of other tenants"
        )

    def handle(self, **options: Any) -> None:
        count, days, tenants = options["sessions"], options["days"], options["tenants"]
        if count < 0 or not 0 < days <= fleet.MOST_DAYS or not 0 < tenants <= 1000:
            raise CommandError(
                f"So many sessions, 1 to 1000 tenants and up to {fleet.MOST_DAYS} days, please."
            )
        if fleet.foreign_sessions() and not options["beside"]:
            raise CommandError(
                "There are sessions of other tenants here. If this database may hold made-up data"
                " beside them, say --beside."
            )
        billing = options["billing"] or ("now" if count <= SETTLED_UP_TO else "never")
        chance = random.Random(options["seed"])
        world = fleet.prepare(
            chance,
            tenants=tenants,
            users=max(8, min(count // 25 // tenants, 2000)),
            starts_at=timezone.now() - timedelta(days=days),
            by=operator_name(),
        )
        self._make(world, chance, count, announced=billing != "never")
        if billing == "now":
            self._settle()

    def _make(
        self, world: fleet.World, chance: random.Random, count: int, *, announced: bool
    ) -> None:
        began, made, checkpoints = time.monotonic(), 0, 0
        for batch in written(calendar.batches(world, chance, count, announced=announced)):
            made += batch.sessions
            checkpoints += batch.checkpoints
            pace = made / (time.monotonic() - began)
            self._progress(f"{made} of {count} sessions, {checkpoints} checkpoints, {pace:.0f}/s")
        self.stdout.write(f"\r{made} sessions with {checkpoints} checkpoints.\033[K")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE " + ", ".join(COLUMNS))

    def _settle(self) -> None:
        settled, more = 0, True
        while more:
            result = settle_due(500)
            settled += result["sessions"]
            more = bool(result["more"])
            self._progress(f"{settled} sessions settled")
        self.stdout.write(f"\r{settled} sessions settled.\033[K")

    def _progress(self, words: str) -> None:
        if self.stdout.isatty():
            self.stdout.write(f"\r{words}\033[K", ending="")
            self.stdout.flush()
