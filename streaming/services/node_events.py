"""What is noted when an operator does something to a node."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from streaming.models import InferenceNode, NodeEvent


def note(node: InferenceNode, kind: str, *, by: str, **data: Any) -> None:
    """Note that ``by`` has done something to ``node``; to be called in the same transaction."""
    NodeEvent.objects.create(
        node=node if node.pk else None,
        node_name=node.name,
        at=timezone.now(),
        kind=kind,
        data={"by": by, **data},
    )


def note_model(model: str, kind: str, *, by: str, **data: Any) -> None:
    """Note what concerns a model on all nodes."""
    NodeEvent.objects.create(
        node_name="", at=timezone.now(), kind=kind, data={"by": by, "model": model, **data}
    )
