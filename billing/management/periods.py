"""Periods as they are named on the command line: ``--period 2026-11 [--tenant T]``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from billing.management.tenants import tenant_named
from billing.models import BillingPeriod
from billing.services.periods import period_named, periods_named


def add_period_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--period", required=True, metavar="YYYY-MM", help="for example 2026-11")
    parser.add_argument("--tenant", help="of this tenant only; by default of all")


def chosen_periods(options: dict[str, Any]) -> list[BillingPeriod]:
    """The periods that the arguments name, by tenant. Raises ``CommandError``."""
    try:
        if options["tenant"]:
            return [period_named(tenant_named(options["tenant"]).pk, options["period"])]
        return periods_named(options["period"])
    except ValueError as exc:
        raise CommandError(f"{exc}.") from exc
