"""What operators do to engine nodes. Gateways read the table once per second.

``by`` names who does it, for the node's history and the audit log: an actor (``user:alice``), or
the name of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils import timezone

from streaming.core.nodes import NodeSpec
from streaming.models import GatewayInstance, InferenceNode
from streaming.services import audit
from streaming.services.node_events import note
from streaming.services.refused import Refused

Admin = InferenceNode.Admin
DEAD_AFTER = timedelta(seconds=5)
"""A gateway whose heartbeat is older counts as dead."""

_STREAMS = """
SELECT coalesce(sum((i.node_streams ->> streaming_inferencenode.id::text)::int), 0)
FROM streaming_gatewayinstance i
WHERE i.stopped_at IS NULL AND i.heartbeat_at > now() - interval '5 seconds'
"""


def add_node(
    spec: NodeSpec, *, source: str = InferenceNode.Source.COMMAND, by: str = audit.SYSTEM
) -> InferenceNode:
    """Add a node; it gets work once a probe has found it healthy. Raises ``Refused``."""
    node = InferenceNode(
        name=spec.name,
        dialect=spec.dialect,
        base_url=spec.base_url,
        weight=spec.weight,
        options=spec.options.said(),
        source=source,
    )
    try:
        # The spec has checked the URL; Django's own check knows no host without a dot.
        node.clean_fields(exclude=["base_url"])
        with transaction.atomic():
            node.save(force_insert=True)
            note_added(node, by=by)
    except ValidationError as exc:
        raise Refused(" ".join(exc.messages)) from exc
    except IntegrityError as exc:
        raise Refused(_taken(spec)) from exc
    return node


def list_nodes() -> QuerySet[Any]:
    """All nodes, each with ``streams``."""
    return with_streams(InferenceNode.objects.order_by("name"))


def with_streams(nodes: QuerySet[InferenceNode]) -> QuerySet[Any]:
    """Each node with ``streams``: our attempts there, as the gateways said with their heartbeats."""
    return nodes.annotate(streams=RawSQL(_STREAMS, ()))


def remove_node(name: str, *, by: str = audit.SYSTEM) -> InferenceNode:
    """Forget a node, and those of its addresses. Its streams fail over; attempts keep its name.

    Raises ``Refused``.
    """
    node = find_node(name)
    if node.source == InferenceNode.Source.ENVIRONMENT:
        raise Refused(
            f"{name} is in ENGINE_NODES and would come back: take it out there, or drain it."
        )
    if node.source == InferenceNode.Source.DNS and node.parent is not None:
        raise Refused(
            f"{name} is an address of {node.parent} and would come back: drain it, or remove"
            f" {node.parent}."
        )
    with transaction.atomic():
        node.delete()
        note(node, "removed", by=by)
        announce("node.remove", node, by=by)
    return node


def drain_node(name: str, *, by: str = audit.SYSTEM) -> InferenceNode:
    """Give the node no new work and move its streams away. Raises ``Refused``.

    Streams that can go nowhere else stay until they end. It is ``drained`` once no gateway has any.
    """
    node = find_node(name)
    if node.state in (Admin.DRAINING, Admin.DRAINED):
        raise Refused(f"{name} is {node.state} already.")
    return _set_state(node, Admin.DRAINING, by)


def resume_node(name: str, *, by: str = audit.SYSTEM) -> InferenceNode:
    """Let a drained (or draining) node have work again: little at first. Raises ``Refused``."""
    node = find_node(name)
    if node.is_leaving:
        raise Refused(f"{name} is no longer an address of its name: it cannot stay.")
    if node.admin_state == Admin.ACTIVE:
        raise Refused(f"{name} is active already.")
    return _set_state(node, Admin.ACTIVE, by)


def find_node(name: str) -> InferenceNode:
    """Raises ``Refused`` naming the nodes there are."""
    try:
        return InferenceNode.objects.get(name=name)
    except InferenceNode.DoesNotExist as exc:
        names = ", ".join(list_nodes().values_list("name", flat=True)) or "none"
        raise Refused(f"There is no node {name!r}; known: {names}.") from exc


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """``unaware``: gateways that run and have not said yet that they know of the drain."""

    state: str
    streams: int
    gateways: int
    unaware: int


def drain_progress(name: str) -> DrainProgress:
    """How far the drain of a node is. Raises ``Refused``."""
    node = find_node(name)
    gateways = GatewayInstance.objects.filter(
        stopped_at=None, heartbeat_at__gt=timezone.now() - DEAD_AFTER
    )
    aware = gateways.filter(nodes_read_at__gt=node.admin_state_at)
    targets = InferenceNode.objects.filter(Q(pk=node.pk) | Q(parent=node))
    streams = sum(target.streams for target in with_streams(targets))
    running = gateways.count()
    return DrainProgress(node.state, streams, running, running - aware.count())


def _set_state(node: InferenceNode, state: str, by: str) -> InferenceNode:
    kind = "resumed" if state == Admin.ACTIVE else state
    with transaction.atomic():
        for target in [node, *node.addresses.exclude(admin_state=state)]:
            if state == Admin.DRAINING and target.admin_state == Admin.DRAINED:
                continue
            was = target.state
            target.admin_state = state
            target.admin_state_at = Now()
            # Health and models are the gateways' to write.
            target.save(update_fields=["admin_state", "admin_state_at"])
            note(target, kind, by=by, was=was)
        announce("node.resume" if state == Admin.ACTIVE else "node.drain", node, by=by)
    node.refresh_from_db()
    return node


def note_change(node: InferenceNode, before: dict[str, Any], *, by: str) -> None:
    """Note what an operator has changed of a node's row: from ``before``, by column."""
    for column, was in before.items():
        note(node, "changed", by=by, what=column, was=was, now=getattr(node, column))
    if before:
        after = {column: getattr(node, column) for column in before}
        announce("node.change", node, by=by, **audit.changes(before, after))


def note_added(node: InferenceNode, *, by: str) -> None:
    """Note that an operator has added a node."""
    note(node, "added", by=by)
    announce("node.add", node, by=by, dialect=node.dialect, base_url=node.base_url)


def announce(action: str, node: InferenceNode, *, by: str, **data: Any) -> None:
    """Have the audit log tell what was done to a node; in the same transaction."""
    if ":" not in by and by != audit.SYSTEM:
        by, data = audit.SYSTEM, {"task": by, **data}
    audit.announce(action, actor=by, subject=f"node:{node.name}", **data)


def _taken(spec: NodeSpec) -> str:
    other = InferenceNode.objects.filter(Q(name=spec.name) | Q(base_url=spec.base_url)).first()
    if other is None:
        return f"{spec.name} could not be added; try again."
    return f"There is a node {other.name} at {other.base_url} already."
