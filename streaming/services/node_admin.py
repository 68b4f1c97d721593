"""What operators do to engine nodes. Gateways read the table every ``HEALTH_INTERVAL``."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from streaming.core.nodes import NodeSpec
from streaming.models import InferenceNode
from streaming.services.refused import Refused


def add_node(spec: NodeSpec, *, source: str = InferenceNode.Source.COMMAND) -> InferenceNode:
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
    except ValidationError as exc:
        raise Refused(" ".join(exc.messages)) from exc
    except IntegrityError as exc:
        raise Refused(_taken(spec)) from exc
    return node


def list_nodes() -> QuerySet[InferenceNode]:
    return InferenceNode.objects.order_by("name")


def remove_node(name: str) -> InferenceNode:
    """Forget a node. Its streams fail over; attempts keep its name. Raises ``Refused``."""
    node = find_node(name)
    if node.source == InferenceNode.Source.ENVIRONMENT:
        raise Refused(
            f"{name} is in ENGINE_NODES and would come back: take it out there, or drain it."
        )
    node.delete()
    return node


def drain_node(name: str) -> InferenceNode:
    """Give the node no new work; what runs on it may finish. Raises ``Refused``."""
    node = find_node(name)
    if node.admin_state != InferenceNode.Admin.ACTIVE:
        raise Refused(f"{name} is {node.admin_state} already.")
    return _set_state(node, InferenceNode.Admin.DRAINING)


def resume_node(name: str) -> InferenceNode:
    """Let a drained (or draining) node have work again. Raises ``Refused``."""
    node = find_node(name)
    if node.admin_state == InferenceNode.Admin.ACTIVE:
        raise Refused(f"{name} is active already.")
    return _set_state(node, InferenceNode.Admin.ACTIVE)


def find_node(name: str) -> InferenceNode:
    """Raises ``Refused`` naming the nodes there are."""
    try:
        return InferenceNode.objects.get(name=name)
    except InferenceNode.DoesNotExist as exc:
        names = ", ".join(list_nodes().values_list("name", flat=True)) or "none"
        raise Refused(f"There is no node {name!r}; known: {names}.") from exc


def _set_state(node: InferenceNode, state: str) -> InferenceNode:
    node.admin_state = state
    node.save(update_fields=["admin_state"])  # health and models are the gateways' to write
    return node


def _taken(spec: NodeSpec) -> str:
    other = InferenceNode.objects.filter(Q(name=spec.name) | Q(base_url=spec.base_url)).first()
    if other is None:
        return f"{spec.name} could not be added; try again."
    return f"There is a node {other.name} at {other.base_url} already."
