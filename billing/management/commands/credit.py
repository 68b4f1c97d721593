"""``manage.py credit book|adjust|requests|approve|refuse``."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from billing.conf import conf
from billing.core.money import plain
from billing.errors import BillingError
from billing.management.commands.price import amount
from billing.management.tenants import tenant_named
from billing.models import CreditRequest, LedgerEntry
from billing.services import credits
from streaming.management.operator import operator_name
from streaming.management.table import table

_NEGATIVE = re.compile(r"-[0-9.]")


class Command(BaseCommand):
    help = "Give back what was charged, or book by hand. Large amounts need a second person."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        book = actions.add_parser("book", help="give back (part of) a charge")
        book.add_argument("charge", type=UUID, help="the id of its line in the ledger")
        book.add_argument("amount", type=amount, help="above 0")
        adjust = actions.add_parser(
            "adjust", help="book anything else; below 0: the tenant owes less"
        )
        adjust.add_argument("tenant")
        adjust.add_argument("amount", type=amount)
        # What argparse takes for a negative number, and not for an option, has no exponent.
        adjust._negative_number_matcher = _NEGATIVE
        adjust.add_argument("--currency", default=conf().billing_currency, help="(%(default)s)")
        for parser_of in (book, adjust):
            parser_of.add_argument("--reason", required=True)
            parser_of.add_argument("--key", default="", help="booked once, however often asked for")
        actions.add_parser("requests", help="what waits for a second person")
        for action, what in (
            ("approve", "book what somebody else asked for"),
            ("refuse", "do not"),
        ):
            decide = actions.add_parser(action, help=what)
            decide.add_argument("request", type=int)

    def handle(self, **options: Any) -> None:
        actor = operator_name()
        try:
            match options["action"]:
                case "book":
                    self._say(
                        credits.book_credit(
                            charge_id=options["charge"],
                            amount=options["amount"],
                            reason=options["reason"],
                            key=options["key"],
                            actor=actor,
                        )
                    )
                case "adjust":
                    self._say(
                        credits.book_adjustment(
                            tenant_id=tenant_named(options["tenant"]).pk,
                            currency=options["currency"],
                            amount=options["amount"],
                            reason=options["reason"],
                            key=options["key"],
                            actor=actor,
                        )
                    )
                case "requests":
                    self._list()
                case "approve":
                    self._say(credits.approve(options["request"], actor=actor))
                case "refuse":
                    request = credits.refuse(options["request"], actor=actor)
                    self.stdout.write(f"Request {request.pk} is refused.")
        except BillingError as exc:
            raise CommandError(str(exc)) from exc

    def _say(self, booked: LedgerEntry | CreditRequest) -> None:
        said = f"{plain(booked.amount)} {booked.currency}"
        if isinstance(booked, CreditRequest):
            self.stdout.write(
                f"Request {booked.pk}: {said} waits for a second person"
                f" (`manage.py credit approve {booked.pk}`)."
                if booked.decision == CreditRequest.Decision.PENDING
                else f"Request {booked.pk}: {said} was {booked.decision} by {booked.decided_by}."
            )
        else:
            self.stdout.write(f"Line {booked.pk}: {said} in {booked.period.name}.")

    def _list(self) -> None:
        rows = [
            (
                str(request.pk), request.tenant.name, plain(request.amount), request.currency,
                request.requested_by, f"{request.requested_at:%Y-%m-%d %H:%M}",
                str(request.charge_id or "-"), request.reason,
            )
            for request in credits.waiting().select_related("tenant")
        ]  # fmt: skip
        head = ("REQUEST", "TENANT", "AMOUNT", "CURRENCY", "BY", "AT", "CHARGE", "REASON")
        self.stdout.write(table(head, rows) if rows else "No request waits.")
