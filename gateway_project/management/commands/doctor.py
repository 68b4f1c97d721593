"""``manage.py doctor``: checks a deployment, and says what to do. See ``docs/doctor.md``."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway_project.doctor import (
    address,
    configuration,
    gateways,
    machine,
    nodes,
    path,
    postgres,
    redis_server,
    tables,
    tasks,
)
from gateway_project.doctor.configuration import KEY_VARIABLE
from gateway_project.doctor.examination import Check, Found, examine, worst
from gateway_project.doctor.finding import Level
from gateway_project.doctor.public import Public
from gateway_project.doctor.report import TextReport, as_json
from gateway_project.doctor.secrets import secrets_of

QUICK, LONG = 35.0, 310.0
"""Seconds for which silence is measured: past the ladder; past what balancers usually allow."""
SUBJECTS = (
    "machine",
    "settings",
    "database",
    "redis",
    "tasks",
    "gateways",
    "nodes",
    "address",
    "path",
)


class Command(BaseCommand):
    help = "Check a deployment from inside, and with --url from its public address; say what to do."
    requires_system_checks = []  # they are among what is looked at

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--url", help="the public address, for example https://gateway.example")
        key = parser.add_mutually_exclusive_group()
        key.add_argument(
            "--key",
            help=f"an API key; others on this machine can see it: better {KEY_VARIABLE} or --key-file",
        )
        key.add_argument("--key-file", metavar="FILE", help="a file with an API key; - reads stdin")
        parser.add_argument("--origin", default="", help="a page's origin, whose access is tried")
        parser.add_argument(
            "--ca", default="", metavar="FILE", help="an authority to believe (PEM)"
        )
        parser.add_argument(
            "--patience",
            type=float,
            metavar="SECONDS",
            help=f"for how long silence is measured (default {QUICK:g})",
        )
        parser.add_argument("--long", action="store_true", help=f"the same as --patience {LONG:g}")
        parser.add_argument(
            "--no-answer",
            action="store_true",
            help="ask no engine for an answer by the public address",
        )
        parser.add_argument(
            "--only", nargs="+", choices=SUBJECTS, metavar="SUBJECT", help=", ".join(SUBJECTS)
        )
        parser.add_argument("--json", action="store_true", help="one JSON object at the end")
        parser.add_argument("--strict", action="store_true", help="warnings count as failures")

    def handle(self, **options: Any) -> None:
        public = _public(options)
        checks = [
            one for one in _checks(public) if not options["only"] or one.subject in options["only"]
        ]
        others = [settings.SECRET_KEY, settings.DATABASE_URL, settings.REDIS_URL]
        key = [public.key] if public else []
        report = TextReport(
            colour=self._has_colour(options),
            width=min(shutil.get_terminal_size((110, 24)).columns, 140),
        )
        found: list[Found] = []
        for one in examine(checks, secrets_of(os.environ, [*others, *key])):
            found.append(one)
            if not options["json"]:
                self.stdout.write("\n".join(report.lines(one)))
        level = worst(found)
        self.stdout.write(as_json(found, level) if options["json"] else report.summary())
        if level is Level.FAILURE or (options["strict"] and level is Level.WARNING):
            sys.exit(1)

    def _has_colour(self, options: dict[str, Any]) -> bool:
        wanted = not options.get("no_color") and "NO_COLOR" not in os.environ
        return wanted and (self.stdout.isatty() or bool(options.get("force_color")))


def _checks(public: Public | None) -> list[Check]:
    host = public.host if public else None
    found = [
        Check("machine", "machine", machine.look),
        Check("settings", "settings", partial(configuration.look, host)),
        Check("database", "database", postgres.look, 40.0),
        Check("database", "tables", tables.look, 30.0),
        Check("redis", "redis", redis_server.look),
        Check("tasks", "tasks", tasks.look, 30.0),
        Check("gateways", "gateways", gateways.look, 20.0),
        Check("nodes", "nodes", nodes.look, 60.0),
    ]
    if public is None:
        return [*found, Check("address", "address", address.without_url)]
    return [
        *found,
        Check("address", "address", partial(address.look, public), 60.0),
        Check("path", "path", partial(path.look, public), path.limit(public)),
    ]


def _public(options: dict[str, Any]) -> Public | None:
    """Raises ``CommandError`` for an address or a file that can't be used."""
    url = (options["url"] or "").rstrip("/")
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise CommandError("--url must be like https://gateway.example, without user and password")
    patience = options["patience"] or (LONG if options["long"] else QUICK)
    if not 1 <= patience <= 390:
        raise CommandError("--patience must be 1 to 390 seconds")
    public = Public(
        url=url,
        key=_key(options),
        origin=options["origin"],
        ca=options["ca"],
        patience=patience,
        asks_engine=not options["no_answer"],
    )
    try:
        public.tls()
    except OSError as exc:
        raise CommandError(f"--ca {public.ca}: {exc.strerror or exc}") from exc
    return public


def _key(options: dict[str, Any]) -> str:
    name = options["key_file"]
    if name is None:
        return (options["key"] or os.environ.get(KEY_VARIABLE, "")).strip()
    try:
        return (sys.stdin.read() if name == "-" else Path(name).read_text()).strip()
    except OSError as exc:
        raise CommandError(f"--key-file {name}: {exc.strerror}") from exc
