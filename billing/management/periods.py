"""Periods as they are named on the command line: ``--period 2026-11 [--tenant T]``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from billing.management.tenants import tenant_named
from billing.models import BillingPeriod
from billing.services.periods import periods_named


def add_period_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--period", required=True, metavar="YYYY-MM", help="for example 2026-11")
    parser.add_argument("--tenant", help="of this tenant only; by default of all")


def chosen_periods(options: dict[str, Any]) -> list[BillingPeriod]:
    """The periods that the arguments name, by tenant; nothing is written (``periods_named``).

    Raises ``CommandError``, also where there are none.
    """
    name, tenant = options["period"], options["tenant"]
    try:
        periods = periods_named(name, tenant_named(tenant).pk if tenant else None)
    except ValueError as exc:
        raise CommandError(f"{exc}.") from exc
    if not periods:
        raise CommandError(f"Nothing was booked for {tenant or 'any tenant'} in {name}.")
    return periods
