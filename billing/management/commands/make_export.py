"""``manage.py make_export ID``: what the admin starts for an export of many lines."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from billing.errors import BillingError
from billing.exports import run
from billing.models import Export

NICENESS = 10


class Command(BaseCommand):
    help = (
        "Make an export that somebody asked for in the admin. Does nothing if it is there already."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("export", type=UUID)
        parser.add_argument(
            "--nice", action="store_true", help="gateways of this machine come first"
        )

    def handle(self, **options: Any) -> None:
        export = Export.objects.filter(pk=options["export"]).first()
        if export is None:
            raise CommandError("There is no such export.")
        if options["nice"]:
            os.nice(NICENESS)
        try:
            run.make(export)
        except BillingError as error:  # the export's row says so, too
            raise CommandError(str(error)) from error
