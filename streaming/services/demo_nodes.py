"""The processes of the demo nodes, which visitors may kill. Demo mode only.

``serve`` notes its children in ``DATA_DIR/run/services.json`` (``gateway_project.supervisor.state``
describes it), with the time each was created: a pid alone may belong to a stranger by now.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import psutil
from django.conf import settings
from django.db import transaction

from streaming.models import InferenceNode
from streaming.services.node_admin import announce


def is_killable(node: InferenceNode, children: dict[str, Any]) -> bool | None:
    """Whether the node's process lives; None when it is no child of this machine's ``serve``."""
    if not _is_child(node, children):
        return None
    return _process(children[node.name]) is not None


@transaction.atomic
def kill(node: InferenceNode, *, by: str) -> bool:
    """SIGKILL the node's process. False when there is none that is certainly the node's."""
    children = read_children()
    process = _process(children[node.name]) if _is_child(node, children) else None
    if process is None:
        return False
    announce("demo.kill", node, by=by)  # before: what cannot be audited must not happen
    try:
        process.kill()
    except psutil.NoSuchProcess:  # somebody was faster
        transaction.set_rollback(True)
        return False
    return True


def read_children() -> dict[str, Any]:
    """The children of ``serve``: by name their ``pid``, ``created`` and ``port``."""
    try:
        state = json.loads((settings.DATA_DIR / "run" / "services.json").read_text())
    except FileNotFoundError:
        return {}
    return state["children"]


def _is_child(node: InferenceNode, children: dict[str, Any]) -> bool:
    """The name alone is not enough: a node may be called ``postgres``."""
    address = urlsplit(node.base_url)
    child = children.get(node.name)
    return child is not None and (address.hostname, address.port) == ("127.0.0.1", child["port"])


def _process(child: dict[str, Any]) -> psutil.Process | None:
    try:
        process = psutil.Process(child["pid"])
        same = abs(process.create_time() - child["created"]) < 0.05
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same and alive else None
