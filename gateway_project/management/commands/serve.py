"""``manage.py serve``: the whole stack in one command."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway_project.supervisor import stack
from gateway_project.supervisor.lock import DataDirInUse, hold_data_dir


class Command(BaseCommand):
    help = (
        "Run the gateway with everything it needs, until Ctrl-C or SIGTERM: PostgreSQL and Redis "
        "where no DATABASE_URL or REDIS_URL is given, migrations, Celery, the gateway processes."
    )
    requires_system_checks = []  # run by the preparation, once there is a database to check

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
        parser.add_argument("--processes", type=int, default=1, help="gateway processes")
        parser.add_argument(
            "--demo-nodes", type=int, default=0, metavar="K", help="llama.cpp nodes to start (CPU)"
        )
        parser.add_argument(
            "--demo", action="store_true", help="demo mode: DEMO and ALLOW_REHEARSAL, a demo login"
        )

    def handle(self, **options: Any) -> None:
        if not 0 <= options["demo_nodes"] <= 26:
            raise CommandError("--demo-nodes takes 0 to 26")
        if options["processes"] < 1:
            raise CommandError("--processes takes 1 or more")
        wanted = stack.Options(
            host=options["host"],
            port=options["port"],
            processes=options["processes"],
            demo_nodes=options["demo_nodes"],
            demo=options["demo"] or settings.STREAMING.demo,
            base_dir=settings.BASE_DIR,
            data_dir=settings.DATA_DIR,
            database_url=settings.DATABASE_URL,
            database_direct_url=settings.DATABASE_DIRECT_URL,
            redis_url=settings.REDIS_URL,
            engine_nodes=settings.ENGINE_NODES,
            streaming=settings.STREAMING,
        )
        try:
            with hold_data_dir(settings.DATA_DIR):
                if settings.RUNNING_STACK is not None:  # its URLs are in our settings
                    raise CommandError("the stack of this DATA_DIR was just ending: try again")
                code = stack.build(wanted).run()
        except (DataDirInUse, OSError) as error:
            raise CommandError(str(error)) from error
        sys.exit(code)
