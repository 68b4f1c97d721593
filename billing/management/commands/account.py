"""``manage.py account list|show|set|recount``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from billing.core.money import plain, typed
from billing.errors import BillingError
from billing.models import BillingAccount, QuotaUse
from billing.services import accounts, quota
from billing.services.periods import period_at
from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.models import Tenant

NO_LIMIT = "none"


class Command(BaseCommand):
    help = "Tenants as finance sees them: name, time zone, and what they may use in a month."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="all tenants and what they have used in this month")
        actions.add_parser("show", help="one tenant").add_argument("tenant")
        change = actions.add_parser("set", help="change some of it")
        change.add_argument("tenant")
        change.add_argument("--legal-name", dest="legal_name")
        change.add_argument("--time-zone", dest="time_zone", help="like Europe/Berlin")
        change.add_argument("--token-limit", dest="token_limit", help="per month, or none")
        change.add_argument("--spend-limit", dest="spend_limit", help="per month, or none")
        change.add_argument("--currency", dest="spend_currency", help="of the spend limit")
        hardness = change.add_mutually_exclusive_group()
        hardness.add_argument(
            "--hard", dest="limits_are_hard", action="store_true", default=None,
            help="refuse new sessions beyond a limit (the default)",
        )  # fmt: skip
        hardness.add_argument(
            "--soft", dest="limits_are_hard", action="store_false", help="only tell"
        )
        recount = actions.add_parser(
            "recount", help="compare what is counted against limits with the settlements"
        )
        recount.add_argument("tenant", nargs="?")
        recount.add_argument("--mend", action="store_true", help="and put it right")

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except BillingError as exc:
            raise CommandError(str(exc)) from exc

    def _list(self, options: dict[str, Any]) -> None:
        found = [
            accounts.find_account(name)
            for name in Tenant.objects.order_by("name").values_list("name", flat=True)
        ]
        head = ("TENANT", "NAME", "TIME ZONE", "TOKENS", "SPEND", "LIMITS")
        self.stdout.write(
            table(head, [_row(a) for a in found]) if found else "There are no tenants."
        )

    def _show(self, options: dict[str, Any]) -> None:
        account = accounts.find_account(options["tenant"])
        _, name, zone, tokens, spend, limits = _row(account)
        self.stdout.write(f"{account.tenant.name}: {name}, {zone}, limits are {limits}")
        self.stdout.write(f"{_period(account)}: {tokens} tokens, {spend} spent")
        if others := accounts.priced_otherwise(account):
            self.stdout.write(
                f"Prices in {', '.join(others)} do not count against a limit in"
                f" {account.spend_currency}."
            )

    def _set(self, options: dict[str, Any]) -> None:
        account = accounts.find_account(options["tenant"])
        values = {name: options[name] for name in accounts.FIELDS if options.get(name) is not None}
        if not values:
            raise CommandError("Say what is to be changed: see `manage.py account set --help`.")
        for name, kind in (("token_limit", _whole), ("spend_limit", typed)):
            if name in values:
                values[name] = _limit(values[name], kind)
        accounts.change_account(account.pk, actor=operator_name(), **values)
        self._show(options)

    def _recount(self, options: dict[str, Any]) -> None:
        tenant = options["tenant"]
        tenant_id = accounts.find_account(tenant).pk if tenant else None
        work = quota.rebuild if options["mend"] else quota.recount
        differences = work(tenant_id=tenant_id)
        for difference in differences:
            self.stdout.write(str(difference))
        if not differences:
            self.stdout.write("What is counted and the settlements agree.")
        elif options["mend"]:
            self.stdout.write("Put right.")
        else:
            raise CommandError("They differ; --mend puts it right.")


def _limit(text: str, read: Callable[[str], int | Decimal]) -> int | Decimal | None:
    if text == NO_LIMIT:
        return None
    try:
        return read(text)
    except ValueError:
        raise CommandError(f"{text!r} is no number; say {NO_LIMIT} for no limit.") from None


def _whole(text: str) -> int:
    number = typed(text)
    if number != number.to_integral_value():
        raise ValueError(f"{text!r} is no whole number")
    return int(number)


def _period(account: BillingAccount) -> str:
    return period_at(account.tenant_id, timezone.now()).name


def _row(account: BillingAccount) -> tuple[str, ...]:
    use = QuotaUse.objects.filter(account=account, period_name=_period(account)).first()
    use = use or QuotaUse(spent=Decimal(0))
    tokens = f"{use.tokens:,}"
    if account.token_limit is not None:
        tokens += f" of {account.token_limit:,}"
    spend = "-"
    if account.spend_limit is not None:
        spend = f"{plain(use.spent)} of {plain(account.spend_limit)} {account.spend_currency}"
    return (
        account.tenant.name,
        account.legal_name or "-",
        account.time_zone,
        tokens,
        spend,
        "hard" if account.limits_are_hard else "soft",
    )
