"""``manage.py node add|list|remove|drain|resume``."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from streaming.core.nodes import NodeSpec
from streaming.management.operator import operator_name
from streaming.management.table import table
from streaming.models import InferenceNode
from streaming.services import node_admin
from streaming.services.refused import Refused

_ACTIONS = {
    "remove": (node_admin.remove_node, "Removed {}; its streams continue elsewhere."),
    "drain": (node_admin.drain_node, "Draining {}: no new work; its streams move elsewhere."),
    "resume": (node_admin.resume_node, "{} takes work again: little at first."),
}
_HEAD = (
    "NAME", "STATE", "CIRCUIT", "ENGINE", "URL", "MODELS", "STREAMS", "RUNNING", "WAITING", "KV",
    "CAN", "CHECKED", "FROM", "NOTE",
)  # fmt: skip
LOOK_SECONDS = 0.25


class Command(BaseCommand):
    help = "Manage the engine nodes. Running gateways follow within a second or so."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser("add", help="add a node")
        add.add_argument(
            "node",
            metavar="[NAME=]DIALECT+URL",
            help="for example gpu-a=vllm+http://10.0.0.7:8000 or"
            " 'gpu-b=llamacpp+http://gpu-b:8080?continuation=text&template=chatml' or"
            " 'pool=vllm+http://vllm.gpu.svc:8000?dns=all', one node for each address",
        )
        actions.add_parser("list", help="all nodes and how they are")
        for action, what in (
            ("remove", "forget a node"),
            ("drain", "give a node no new work and move its streams elsewhere"),
            ("resume", "let a drained node have work again"),
        ):
            named = actions.add_parser(action, help=what)
            named.add_argument("name")
            if action == "drain":
                named.add_argument(
                    "--wait", action="store_true", help="return when nothing runs there any more"
                )
                named.add_argument(
                    "--timeout",
                    type=float,
                    metavar="SECONDS",
                    help="with --wait: give up after this long; the node goes on draining",
                )

    def handle(self, **options: Any) -> None:
        action = options["action"]
        try:
            if action == "list":
                self._list()
            elif action == "add":
                node = node_admin.add_node(NodeSpec.parse(options["node"]), by=operator_name())
                self.stdout.write(f"Added {node.name} ({node.dialect} at {node.base_url}).")
            else:
                act, words = _ACTIONS[action]
                self._act(act, words, options)
        except (Refused, ValueError) as exc:  # ValueError: a spec that does not parse
            raise CommandError(str(exc)) from exc

    def _act(self, act: Any, words: str, options: dict[str, Any]) -> None:
        name, wait = options["name"], options.get("wait", False)
        if wait and node_admin.find_node(name).state in ("draining", "drained"):
            self.stdout.write(f"{name} is being drained already.")
        else:
            self.stdout.write(words.format(act(name, by=operator_name()).name))
        if wait:
            self._wait(name, options["timeout"])

    def _wait(self, name: str, timeout: float | None) -> None:
        """Follow a drain to its end. Raises ``CommandError`` when it does not come in time."""
        began = time.monotonic()
        said = None
        while (progress := node_admin.drain_progress(name)).state != "drained":
            waited = time.monotonic() - began
            if progress.state != "draining":
                raise CommandError(f"{name} is not drained: somebody has resumed it.")
            if not progress.gateways and waited > node_admin.DEAD_AFTER.total_seconds():
                raise CommandError(
                    f"No gateway is running, so nobody can say that {name} is drained."
                )
            if timeout is not None and waited > timeout:
                raise CommandError(
                    f"{name} is not drained after {timeout:g} s: {_what_is_left(progress)}."
                    " It goes on draining."
                )
            if (words := _what_is_left(progress)) != said:
                self.stdout.write(f"{words[0].upper()}{words[1:]}.")
                said = words
            time.sleep(LOOK_SECONDS)
        self.stdout.write(f"{name} is drained: nothing runs there.")

    def _list(self) -> None:
        rows = [_row(node) for node in node_admin.list_nodes()]
        self.stdout.write(
            table(_HEAD, rows)
            if rows
            else "There are no engine nodes: see `manage.py node add --help`."
        )


def _row(node: Any) -> tuple[str, ...]:
    figures = node.figures
    return (
        node.name,
        node.state,
        node.circuit,
        node.get_dialect_display(),
        node.base_url,
        ", ".join(node.models_served) or "-",
        str(node.streams),
        _number(figures.get("running")),
        _number(figures.get("waiting")),
        "-" if figures.get("kv_usage") is None else f"{figures['kv_usage']:.0%}",
        node.abilities,
        _ago(node),
        node.source,
        _note(node),
    )


def _ago(node: InferenceNode) -> str:
    if node.checked_at is None:
        return "-"
    return f"{(timezone.now() - node.checked_at).total_seconds():.0f} s ago"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


def _what_is_left(progress: node_admin.DrainProgress) -> str:
    if progress.unaware:
        return f"{progress.unaware} of {progress.gateways} gateways have yet to hear of it"
    return f"{progress.streams} streams run there"


def _note(node: InferenceNode) -> str:
    """Why the node is not up; and that nobody has looked, when no gateway runs."""
    if node.options.get("dns") == "all":
        return "stands for the addresses of its name"
    if node.is_leaving:
        return "its name has this address no more"
    if node.checked_at is None:
        return "not probed yet (is a gateway running?)"
    return node.health_reason
