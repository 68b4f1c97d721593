"""``manage.py second_factor list | reset USER``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from gateway_project.second_factor import devices
from gateway_project.staff import person_of
from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = "Who of the staff has a second factor; and take away one whose phone is lost."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", nargs="?", default="list", choices=["list", "reset"])
        parser.add_argument("user", nargs="?", help="the name that they log in with")

    def handle(self, **options: Any) -> None:
        if options["what"] == "list":
            self.stdout.write(f"STAFF_SECOND_FACTOR is {devices.mode()}.")
            staff = User.objects.filter(is_staff=True, is_active=True).order_by("username")
            rows = [
                (
                    one.username,
                    "yes" if devices.is_enrolled(one) else "no",
                    f"{devices.codes_left(one)}",
                )
                for one in staff
            ]
            self.stdout.write(table(("USER", "SECOND FACTOR", "CODES LEFT"), rows))
            return
        if not options["user"]:
            raise CommandError("Say whose: manage.py second_factor reset alice.")
        try:
            there = devices.remove(person_of(options["user"]), by=operator_name())
        except Refused as refusal:
            raise CommandError(str(refusal)) from refusal
        said = "has no second factor any more" if there else "had none"
        self.stdout.write(f"{options['user']} {said}.")
