"""Incidents from Django's side: what tasks open and close. The SQL is ``runtime.incidents``'."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from streaming.models import InferenceNode
from streaming.runtime import incidents
from streaming.services.sql import changed, rows


def open_incident(
    kind: str,
    subject: str,
    *,
    node: InferenceNode | None = None,
    session_id: UUID | None = None,
    data: dict[str, Any] | None = None,
) -> bool:
    """Open one, or bring the open one up to date; whether it is new. ``data`` goes into JSON."""
    node_id = None if node is None else node.pk
    arguments = incidents.open_arguments(kind, subject, node_id, session_id, data or {})
    return bool(rows(incidents.OPEN, *arguments)[0][0])


def close_incident(kind: str, subject: str) -> bool:
    """Close the open one; whether there was one."""
    return changed(incidents.CLOSE, kind, subject[:200]) > 0
