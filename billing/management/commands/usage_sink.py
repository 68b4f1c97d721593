"""``manage.py usage_sink add|list|set|enable|disable|rotate|secret|test|replay``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Count, Q

from billing.core.collectors import Verdict
from billing.errors import BillingError
from billing.models import EventDelivery, UsageSink
from billing.services import deliveries, sinks, usage_events
from streaming.management.operator import operator_name
from streaming.management.table import table

_NAMED = {
    "enable": "tell it what is used again",
    "disable": "tell it nothing",
    "rotate": "give a webhook a new signing secret; the former one goes on signing too",
    "secret": "show the signing secret of a webhook",
    "test": "send it an event that says nothing, now",
}


class Command(BaseCommand):
    help = "Where usage events go: collectors, and the webhooks of tenants."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="all sinks and what waits for them")
        add = actions.add_parser("add", help="add one")
        add.add_argument("name")
        add.add_argument("url")
        add.add_argument("--kind", choices=UsageSink.Kind.values, default=UsageSink.Kind.WEBHOOK)
        add.add_argument("--tenant", help="only the events of this one; else of all")
        change = actions.add_parser("set", help="change one")
        change.add_argument("name")
        change.add_argument("--url")
        for command in (add, change):
            command.add_argument("--credential", help="env:NAME or file:/path, sent as bearer")
            command.add_argument(
                "--option", action="append", metavar="NAME=VALUE",
                help="see docs/usage-events.md; several times for several",
            )  # fmt: skip
        for action, what in _NAMED.items():
            actions.add_parser(action, help=what).add_argument("name")
        replay = actions.add_parser("replay", help="send it past events (again), with their ids")
        replay.add_argument("name")
        which = replay.add_mutually_exclusive_group(required=True)
        which.add_argument("--failed", action="store_true", help="those that were given up")
        which.add_argument("--period", help="those of a month, like 2026-11")
        which.add_argument(
            "--from", dest="from_settlement", type=int, metavar="SETTLEMENT",
            help="those from this settlement on; 0: all there are",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        try:
            match options["action"]:
                case "list":
                    self._list()
                case "add":
                    self._add(options)
                case "set":
                    self._set(options)
                case action:
                    self._do(action, sinks.find_sink(options["name"]), options)
        except BillingError as exc:
            raise CommandError(str(exc)) from exc

    def _do(self, action: str, sink: UsageSink, options: dict[str, Any]) -> None:
        match action:
            case "enable" | "disable":
                sinks.switch_sink(sink, enabled=action == "enable", actor=operator_name())
                self.stdout.write(f"{sink.name} is {action}d.")
            case "rotate":
                self.stdout.write(
                    f"Signed from now on with {sinks.rotate(sink, actor=operator_name())}"
                )
                self.stdout.write("Until the next rotation also with the one before it.")
            case "secret":
                self.stdout.write(sinks.secret_of(sink))
            case "test":
                self._test(sink)
            case "replay" if options["failed"]:
                self.stdout.write(
                    f"{usage_events.replay_failed(sink)} events wait for {sink.name}."
                )
            case "replay":
                count = usage_events.replay(
                    sink,
                    period_name=options["period"] or "",
                    from_settlement=options["from_settlement"] or 0,
                )
                self.stdout.write(f"{count} events wait for {sink.name}.")

    def _add(self, options: dict[str, Any]) -> None:
        sink = sinks.add_sink(
            name=options["name"],
            url=options["url"],
            kind=options["kind"],
            tenant_name=options["tenant"],
            credential=options["credential"] or "",
            options=_options(options["option"]),
            actor=operator_name(),
        )
        self.stdout.write(f"Added {sink.name} ({sink.kind}).")
        if sink.kind == UsageSink.Kind.WEBHOOK:
            self.stdout.write(f"Its messages are signed with {sinks.secret_of(sink)}")

    def _set(self, options: dict[str, Any]) -> None:
        sink = sinks.find_sink(options["name"])
        for name in ("url", "credential"):
            if options[name] is not None:
                setattr(sink, name, options[name])
        sink.options = {**sink.options, **_options(options["option"])}
        sinks.change_sink(sink, actor=operator_name())
        self.stdout.write(f"Changed {sink.name}.")

    def _test(self, sink: UsageSink) -> None:
        outcome = deliveries.send_now(usage_events.announce_test(sink))
        if outcome.verdict is not Verdict.TAKEN:
            raise CommandError(f"{sink.name} did not take it: {outcome.said}")
        self.stdout.write(f"{sink.name} has taken it: {outcome.said}")

    def _list(self) -> None:
        states = EventDelivery.State
        found = UsageSink.objects.select_related("tenant").order_by("name")
        found = found.annotate(
            waiting=Count("deliveries", filter=Q(deliveries__state=states.PENDING)),
            failed=Count("deliveries", filter=Q(deliveries__state=states.FAILED)),
        )
        head = ("NAME", "KIND", "TENANT", "URL", "STATE", "WAITING", "FAILED")
        lines = [
            (
                sink.name, sink.kind, sink.tenant.name if sink.tenant else "(all)", sink.url,
                _state(sink), str(sink.waiting), str(sink.failed),
            )
            for sink in found
        ]  # fmt: skip
        self.stdout.write(table(head, lines) if lines else "There are no usage sinks.")


def _state(sink: UsageSink) -> str:
    if not sink.enabled:
        return "disabled"
    if sink.failing_since is None:
        return "ok"
    return f"failing since {sink.failing_since:%Y-%m-%d %H:%M}"


def _options(said: list[str] | None) -> dict[str, str]:
    options = {}
    for one in said or []:
        name, equals, value = one.partition("=")
        if not equals:
            raise CommandError(f"{one!r} is no option: write NAME=VALUE.")
        options[name] = value
    return options
