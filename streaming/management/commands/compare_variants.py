"""``manage.py compare_variants --since 7d``."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from streaming.management.table import table
from streaming.services.variants import Side, compare_variants

HEAD = (
    "VARIANT", "SESSIONS", "FIRST TOKEN P50", "P95", "GAPS", "GAP P95", "NOTICED", "RETURNS",
    "HEALTH", "WEAK",
)  # fmt: skip
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}


def moment(text: str) -> datetime:
    """``24h``, ``7d``, a day or a time (UTC where it says nothing else)."""
    if match := re.fullmatch(r"(\d{1,5})([hd])", text):
        return timezone.now() - int(match[1]) * _UNITS[match[2]]
    try:
        day = parse_date(text)
        found = parse_datetime(text) if day is None else datetime(day.year, day.month, day.day)  # noqa: DTZ001  made aware below
    except ValueError:
        found = None
    if found is None:
        raise ArgumentTypeError("give hours (24h), days (7d), a day or a time")
    return timezone.make_aware(found) if timezone.is_naive(found) else found


class Command(BaseCommand):
    help = "Compare the variants of sessions: how fast, how often interrupted, on what connections."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--since", type=moment, default="7d", metavar="WHEN",
            help="sessions that began since: 24h, 7d, 2026-11-30 (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument("--tenant", help="of this tenant only (its short name)")

    def handle(self, **options: Any) -> None:
        sides = compare_variants(options["since"], tenant=options["tenant"])
        self.stdout.write(
            table(HEAD, list(map(_row, sides))) if sides else "There are no sessions."
        )


def _row(side: Side) -> tuple[str, ...]:
    return (
        side.variant or "-",
        str(side.sessions),
        _ms(side.first_token_p50),
        _ms(side.first_token_p95),
        str(side.gaps),
        _ms(side.gap_p95),
        str(side.noticed),
        str(side.returns),
        "-" if side.health is None else f"{side.health:.0f}",
        str(side.weak),
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
