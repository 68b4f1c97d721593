"""``manage.py close_period --period 2026-11 [--tenant T] [--despite item…]``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.core.money import plain
from billing.errors import BillingError, PeriodNotReady
from billing.management.periods import add_period_arguments, chosen_periods
from billing.models import BillingPeriod
from billing.services.closing import ITEMS, NOT_OVER, close_period
from billing.services.periods import period_named
from streaming.management.operator import operator_name
from streaming.management.table import table


class Command(BaseCommand):
    help = (
        "Close a month for good: totals are rounded and frozen, and what comes later goes into the"
        " next one. Shows the checklist, and ends with 1 if a period stays open."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_period_arguments(parser)
        parser.add_argument(
            "--despite",
            nargs="+",
            default=[],
            choices=sorted(ITEMS.keys() - {NOT_OVER}),
            metavar="ITEM",
            help="put up with these items of the checklist; it is recorded (%(choices)s)",
        )

    def handle(self, **options: Any) -> None:
        periods = chosen_periods(options)
        despite = frozenset(options["despite"])
        left = [period for period in periods if not self._close(period, despite)]
        if left:
            raise CommandError(f"{len(left)} of {len(periods)} periods stay open.")

    def _close(self, period: BillingPeriod, despite: frozenset[str]) -> bool:
        """Close one, and say so; whether it is closed."""
        self.stdout.write(f"{period.tenant.name} {period.name}")
        if period.closed_at is not None:
            self.stdout.write(
                f"  was closed at {period.closed_at:%Y-%m-%d %H:%M} by {period.closed_by}"
            )
            return True
        if period.pk is None:
            period = period_named(period.tenant_id, period.name)
        try:
            closed = close_period(period.pk, actor=operator_name(), despite=despite)
        except PeriodNotReady as exc:
            self._show(exc.checklist, despite)
            self.stdout.write(f"  stays open: {exc}")
            return False
        except BillingError as exc:  # the others can still be closed
            self.stdout.write(f"  stays open: {exc}")
            return False
        self._show(closed.checklist, despite)
        for total in closed.totals.order_by("currency"):
            self.stdout.write(
                f"  {plain(total.rounded)} {total.currency} in {total.lines} lines"
                f" (exactly {plain(total.exact)})"
            )
        self.stdout.write("  closed")
        return True

    def _show(self, checklist: dict[str, Any], despite: frozenset[str]) -> None:
        rows = [
            (
                f"  {_mark(name, item['open'], despite)}",
                name,
                str(item["open"] or "-"),
                item["asks"],
            )
            for name, item in checklist["items"].items()
        ]
        self.stdout.write(table(("  ", "ITEM", "OPEN", "ASKS WHETHER"), rows))
        for difference in checklist["differences"]:
            session = difference["session_id"] or "-"
            self.stdout.write(
                f"    {difference['kind']} {session} {difference['subject']}:"
                f" {difference['found']} instead of {difference['expected']}"
            )


def _mark(name: str, is_open: int, despite: frozenset[str]) -> str:
    if not is_open:
        return "ok"
    return "despite" if name in despite else "OPEN"
