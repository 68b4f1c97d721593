"""``manage.py reconcile_billing --period 2026-11 [--tenant T] [--json]``."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.core.differences import Difference
from billing.core.money import plain
from billing.management.periods import add_period_arguments, chosen_periods
from billing.services.reconciliation import Report, reconcile


class Command(BaseCommand):
    help = (
        "Prove that ledger = settlements = log, by tenant and period, and compare with the engines'"
        " own counts. Lists every difference, and ends with 1 if there is one."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_period_arguments(parser)
        parser.add_argument(
            "--json",
            action="store_true",
            help="one JSON object a line: the differences of a period, then its report",
        )

    def handle(self, **options: Any) -> None:
        tell = self._tell_json if options["json"] else self._tell
        found = 0
        for period in chosen_periods(options):
            report = reconcile(period, tell=tell)
            if options["json"]:
                self._write({"report": report.as_dict()})
            else:
                self._show(report)
            found += sum(report.found.values())
        if found:
            raise CommandError(f"{found} differences.")

    def _tell(self, difference: Difference) -> None:
        self.stdout.write(str(difference))

    def _tell_json(self, difference: Difference) -> None:
        self._write({"difference": difference.as_dict()})

    def _write(self, values: dict[str, Any]) -> None:
        self.stdout.write(json.dumps(values, ensure_ascii=False))

    def _show(self, report: Report) -> None:
        say = self.stdout.write
        say(f"{report.period.tenant.name} {report.period.name}")
        say(
            f"  {report.sessions} sessions, {report.settlements} settlements, {report.lines} lines;"
            f" {report.in_flux} of the sessions go on or wait"
        )
        say(
            f"  tokens recounted from the log: {report.recounted} sessions;"
            f" from the digest of a purged log: {report.purged}"
        )
        say(
            f"  tokens: {report.log_tokens} in logs, {report.delivered_tokens} delivered,"
            f" {report.billed_tokens} billed, {report.wasted_tokens} wasted of"
            f" {report.generated_tokens} generated"
        )
        for node, tally in sorted(report.engines.items()):
            say(
                f"  engine {node}: says {tally.told}, counted {tally.counted} tokens in"
                f" {tally.attempts} attempts, {tally.differing} of which differ"
            )
        for total in report.totals:
            say(
                f"  {plain(total.amount)} {total.currency}: charges {plain(total.charges)}, credits"
                f" {plain(total.credits)}, adjustments {plain(total.adjustments)}"
            )
        found = ", ".join(f"{count} {kind}" for kind, count in report.found.items())
        say(f"  differences: {found}" if found else "  ledger = settlements = log")
