"""``manage.py node add|list|remove|drain|resume``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from streaming.core.nodes import NodeSpec
from streaming.management.table import table
from streaming.models import InferenceNode
from streaming.services import node_admin
from streaming.services.refused import Refused

_ACTIONS = {
    "remove": (node_admin.remove_node, "Removed {}; its streams continue elsewhere."),
    "drain": (node_admin.drain_node, "Draining {}: no new work; what runs there may finish."),
    "resume": (node_admin.resume_node, "{} takes work again."),
}


class Command(BaseCommand):
    help = "Manage the engine nodes. Running gateways follow within a second or so."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser("add", help="add a node")
        add.add_argument(
            "node",
            metavar="[NAME=]DIALECT+URL",
            help="for example gpu-a=vllm+http://10.0.0.7:8000 or"
            " 'gpu-b=llamacpp+http://gpu-b:8080?continuation=text&template=chatml'",
        )
        actions.add_parser("list", help="all nodes and how they are")
        for action, what in (
            ("remove", "forget a node"),
            ("drain", "give a node no new work"),
            ("resume", "let a drained node have work again"),
        ):
            actions.add_parser(action, help=what).add_argument("name")

    def handle(self, **options: Any) -> None:
        action = options["action"]
        try:
            if action == "list":
                self._list()
            elif action == "add":
                node = node_admin.add_node(NodeSpec.parse(options["node"]))
                self.stdout.write(f"Added {node.name} ({node.dialect} at {node.base_url}).")
            else:
                act, words = _ACTIONS[action]
                self.stdout.write(words.format(act(options["name"]).name))
        except (Refused, ValueError) as exc:  # ValueError: a spec that does not parse
            raise CommandError(str(exc)) from exc

    def _list(self) -> None:
        rows = [
            (
                node.name, node.health, node.admin_state, node.get_dialect_display(),
                node.base_url, ", ".join(node.models_served) or "-", node.source, _note(node),
            )
            for node in node_admin.list_nodes()
        ]  # fmt: skip
        head = ("NAME", "HEALTH", "STATE", "ENGINE", "URL", "MODELS", "FROM", "NOTE")
        self.stdout.write(
            table(head, rows)
            if rows
            else "There are no engine nodes: see `manage.py node add --help`."
        )


def _note(node: InferenceNode) -> str:
    """Why the node is not up; and that nobody has looked, when no gateway runs."""
    if node.checked_at is None:
        return "not probed yet (is a gateway running?)"
    return node.health_reason
