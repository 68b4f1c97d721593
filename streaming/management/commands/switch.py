"""``manage.py switch failover|hedging|defragment on|off|dry_run --node NAME | --model NAME``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.models import ModelPolicy
from streaming.services import switches
from streaming.services.node_admin import list_nodes
from streaming.services.refused import Refused


class Command(BaseCommand):
    help = (
        "Turn failover, hedging or defragment on or off for a node, or for a model on all nodes,"
        " while everything runs. Off in one place is off. Without arguments: how all stand."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "switch", nargs="?", default="list", help=f"{', '.join(switches.NAMES)}; or list"
        )
        parser.add_argument("to", nargs="?", help="on, off; defragment also dry_run")
        parser.add_argument("--node", help="the node")
        parser.add_argument("--model", help="the model, as the nodes call it")

    def handle(self, **options: Any) -> None:
        switch, to, node, model = (options[name] for name in ("switch", "to", "node", "model"))
        try:
            if switch == "list":
                self._list()
            elif not to:
                raise CommandError(f"Say what {switch} is to be: on, off; defragment also dry_run.")
            elif bool(node) == bool(model):
                raise CommandError("Say for what: either --node NAME or --model NAME.")
            elif node:
                switches.switch_node(node, switch, to, by=operator_name())
                self.stdout.write(f"{switch} is {to} on {node}.")
            else:
                switches.switch_model(model, switch, to, by=operator_name())
                self.stdout.write(f"{switch} is {to} for model {model} on all nodes.")
                if model not in switches.served_models():
                    self.stdout.write(f"No node was seen serving {model} so far.")
        except Refused as exc:
            raise CommandError(str(exc)) from exc

    def _list(self) -> None:
        rows = [
            ("node", node.name, node.failover, node.hedging, node.defragment)
            for node in list_nodes()
        ]
        rows += [
            ("model", policy.model, policy.failover, policy.hedging, policy.defragment)
            for policy in ModelPolicy.objects.order_by("model")
        ]
        head = ("FOR", "NAME", "FAILOVER", "HEDGING", "DEFRAGMENT")
        self.stdout.write(table(head, rows) if rows else "There are no nodes and no policies.")
