"""``manage.py price list|set|end|withdraw``."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q
from django.utils import timezone

from billing.conf import conf
from billing.core.money import plain, typed
from billing.core.policy import Policy
from billing.errors import BillingError
from billing.management.tenants import tenant_named
from billing.models import PricePlan
from billing.services import prices
from streaming.management.operator import operator_name
from streaming.management.table import table

_HEAD = (
    "PLAN", "TENANT", "MODEL", "FROM", "TO", "CURRENCY", "INPUT", "CACHED", "OUTPUT", "COST", "TIMES",
    "POLICY", "SET BY", "NOTE",
)  # fmt: skip


class Command(BaseCommand):
    help = "List and set prices, per million tokens. Nothing that was settled is priced anew."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listed = actions.add_parser("list", help="prices that are in force or will be")
        listed.add_argument("--all", action="store_true", help="those of the past, too")
        put = actions.add_parser("set", help="new prices, from now or from a moment on")
        for parser_of in (listed, put):
            parser_of.add_argument("--tenant", help="by default everybody's")
            parser_of.add_argument("--model", default="", help="by default every model's")
        put.add_argument("--currency", default=conf().billing_currency, help="(%(default)s)")
        put.add_argument("--input", type=amount, required=True)
        put.add_argument("--cached-input", type=amount, help="by default as input")
        put.add_argument("--output", type=amount, required=True)
        put.add_argument("--cost", type=amount, help="what a generated million costs ourselves")
        put.add_argument("--coefficient", type=amount, default=Decimal(1))
        put.add_argument(
            "--policy",
            choices=list(Policy),
            default=Policy.DELIVERED,
            type=Policy,
            help="interrupt_compensated takes a --note",
        )
        put.add_argument(
            "--from", type=moment, metavar="TIME", help="for example 2026-12-01T00:00Z"
        )
        put.add_argument("--note", default="", help="for example the contract")
        end = actions.add_parser("end", help="let a plan end without a successor")
        end.add_argument("plan", type=int)
        end.add_argument("--at", type=moment, metavar="TIME", help="by default now")
        withdraw = actions.add_parser("withdraw", help="take back a plan that has not begun")
        withdraw.add_argument("plan", type=int)

    def handle(self, **options: Any) -> None:
        actor = operator_name()
        try:
            match options["action"]:
                case "list":
                    self._list(options)
                case "set":
                    plan = self._set(options, actor)
                    self.stdout.write(f"Plan {plan.pk}: {plan}.")
                case "end":
                    plan = prices.end_plan(options["plan"], effective_to=options["at"], actor=actor)
                    self.stdout.write(f"Plan {plan.pk} ends at {_minute(plan.effective_to)}.")
                case "withdraw":
                    prices.withdraw_plan(options["plan"], actor=actor)
                    self.stdout.write(f"Plan {options['plan']} is withdrawn.")
        except BillingError as exc:
            raise CommandError(str(exc)) from exc

    def _set(self, options: dict[str, Any], actor: str) -> PricePlan:
        tenant, cached = options["tenant"], options["cached_input"]
        return prices.set_plan(
            tenant_id=tenant_named(tenant).pk if tenant else None,
            model=options["model"],
            currency=options["currency"],
            input_per_million=options["input"],
            cached_input_per_million=options["input"] if cached is None else cached,
            output_per_million=options["output"],
            effective_from=options["from"],
            cost_per_million=options["cost"],
            coefficient=options["coefficient"],
            policy=options["policy"],
            note=options["note"],
            actor=actor,
        )

    def _list(self, options: dict[str, Any]) -> None:
        plans = PricePlan.objects.select_related("list__tenant").order_by(
            "list__tenant__name", "list__model", "effective_from"
        )
        if options["tenant"]:
            plans = plans.filter(list__tenant=tenant_named(options["tenant"]))
        if options["model"]:
            plans = plans.filter(list__model=options["model"])
        if not options["all"]:
            plans = plans.filter(Q(effective_to__isnull=True) | Q(effective_to__gt=timezone.now()))
        rows = [_row(plan) for plan in plans]
        self.stdout.write(table(_HEAD, rows) if rows else "There are no prices.")


def amount(text: str) -> Decimal:
    """:func:`billing.core.money.typed`, by the name that messages of commands have for it."""
    return typed(text)


def moment(text: str) -> datetime:
    """A time, UTC where it names no zone. Raises ``ValueError``."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _row(plan: PricePlan) -> tuple[str, ...]:
    tenant = plan.list.tenant
    return (
        str(plan.pk),
        "-" if tenant is None else tenant.name,
        plan.list.model or "-",
        _minute(plan.effective_from),
        _minute(plan.effective_to),
        plan.currency,
        plain(plan.input_per_million),
        plain(plan.cached_input_per_million),
        plain(plan.output_per_million),
        "-" if plan.cost_per_million is None else plain(plan.cost_per_million),
        plain(plan.coefficient),
        plan.policy,
        plan.created_by,
        plan.note,
    )


def _minute(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"
