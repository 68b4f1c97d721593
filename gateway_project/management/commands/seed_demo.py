"""``manage.py seed_demo``: sessions to look at, where there are none yet."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from argparse import ArgumentParser
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from billing.services.settlement import settle_due
from gateway_project.demo import calendar, desk, fleet, real
from gateway_project.demo.copying import COLUMNS, written
from streaming.client import NetworkError, ServerError
from streaming.management.operator import operator_name
from streaming.models import InferenceNode
from streaming.services.api_keys import create_api_key, revoke_api_key
from streaming.services.demo_nodes import is_killable, kill, read_children
from streaming.services.explaining import explain_all

SETTLED_UP_TO = 5000
"""Of more sessions than that, billing takes hours: who wants it says so."""


class Command(BaseCommand):
    help = (
        "Make believable sessions: tenants, prices, days and nights, interruptions of every cause."
        " Not for a database that serves real users."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--sessions", type=int, default=2000, metavar="N")
        parser.add_argument(
            "--real",
            type=int,
            default=0,
            metavar="M",
            help="so many real answers from the running gateway besides, with rehearsed faults; of"
            " a demo some engines are killed",
        )
        parser.add_argument("--url", help="of the gateway (default: of the running serve)")
        parser.add_argument("--model", default="chat-default", help="to ask for real answers")
        parser.add_argument("--days", type=float, default=14.0, metavar="D", help="how far back")
        parser.add_argument("--tenants", type=int, default=4, metavar="T")
        parser.add_argument(
            "--seed", type=int, metavar="S", help="the same data again (default: always others)"
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
        if (
            min(count, options["real"]) < 0
            or not 0 < days <= fleet.MOST_DAYS
            or not 0 < tenants <= 1000
        ):
            raise CommandError(
                f"So many sessions, 1 to 1000 tenants and up to {fleet.MOST_DAYS} days, please."
            )
        if fleet.foreign_sessions() and not options["beside"]:
            raise CommandError(
                "There are sessions of other tenants here. If this database may hold made-up data"
                " beside them, say --beside."
            )
        billing = options["billing"] or ("now" if count <= SETTLED_UP_TO else "never")
        seed = secrets.randbits(31) if options["seed"] is None else options["seed"]
        chance = random.Random(seed)
        world = fleet.prepare(
            chance,
            tenants=tenants,
            users=max(8, min(count // 25 // tenants, 2000)),
            starts_at=timezone.now() - timedelta(days=days),
            by=operator_name(),
        )
        try:
            self._fill(world, chance, billing, options)
        except KeyboardInterrupt:
            raise CommandError(
                "Broken off. What is made stays, whole; with --billing never it is never settled."
            ) from None
        self.stdout.write(f"Seed {seed}.")

    def _fill(
        self, world: fleet.World, chance: random.Random, billing: str, options: dict[str, Any]
    ) -> None:
        if options["sessions"]:
            self._make(world, chance, options["sessions"], announced=billing != "never")
        if options["real"]:
            self._play(world, chance, options)
        self._explain()
        self.stdout.write(f"{desk.review(chance, by=operator_name())} sessions reviewed.")
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

    def _play(self, world: fleet.World, chance: random.Random, options: dict[str, Any]) -> None:
        """Real answers, for the first tenant, with a key that ends with them."""
        url = options["url"] or (settings.RUNNING_STACK or {}).get("url")
        if not url:
            raise CommandError("No gateway runs on this DATA_DIR: name one with --url.")
        customer, by = world.customers[0], operator_name()
        key, secret = create_api_key(
            tenant_name=customer.name, name="seed_demo", is_test=True, by=by
        )
        script = real.Script(
            url=url,
            key=secret,
            model=options["model"],
            users=tuple(user for user in customer.users if user),
            chance=chance,
            kill=partial(_kill_an_engine, chance, by) if read_children() else None,
            tell=lambda tally: self._progress(str(tally)),
        )
        try:
            tally = asyncio.run(real.play(script, options["real"]))
        except (ServerError, NetworkError) as error:
            raise CommandError(f"The gateway at {url}: {error}") from error
        finally:
            revoke_api_key(str(key.pk), by=by)
        self.stdout.write(f"\r{tally}.\033[K")

    def _explain(self) -> None:
        """Others may do so at the same time: then there is less to be told."""
        explained, more = 0, True
        while more:
            result = explain_all()
            explained += result["explained"]
            more = bool(result["more"])
            self._progress(f"{explained} sessions explained")
        self.stdout.write(f"\r{explained} sessions explained.\033[K")

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


def _kill_an_engine(chance: random.Random, by: str) -> bool:
    """Kill the process of one of the demo's nodes, unless it is the last that works."""
    try:
        up = [node for node in InferenceNode.objects.all() if node.state == "up"]
        killable = [node for node in up if is_killable(node, read_children())]
        return len(up) > 1 and bool(killable) and kill(chance.choice(killable), by=by)
    finally:
        connection.close()  # of a thread that may not come back
