"""Incidents from Django's side: what tasks and people open and close. The SQL is ``runtime.incidents``'."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from streaming.models import Incident, InferenceNode
from streaming.runtime import incidents
from streaming.services import audit
from streaming.services.refused import Refused
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


@transaction.atomic
def close_by_hand(incident_id: int, *, by: str) -> Incident:
    """Somebody says that it is over. Who opened it does so again where it is not. Raises ``Refused``."""
    incident = _locked(incident_id)
    if incident.closed_at is not None:
        raise Refused("It is closed already.")
    return _move(incident, timezone.now(), "incident.close", by)


def reopen_by_hand(incident_id: int, *, by: str) -> Incident:
    """It is not over after all. Raises ``Refused``: it is open, or there is a newer one like it."""
    try:
        with transaction.atomic():
            incident = _locked(incident_id)
            if incident.closed_at is None:
                raise Refused("It is open already.")
            return _move(incident, None, "incident.reopen", by)
    except IntegrityError as exc:
        raise Refused("There is a newer one of the same, which is open.") from exc


def _locked(incident_id: int) -> Incident:
    incident = Incident.objects.select_for_update(of=("self",)).filter(pk=incident_id).first()
    if incident is None:
        raise Refused("There is no such incident.")
    return incident


def _move(incident: Incident, closed_at: datetime | None, action: str, by: str) -> Incident:
    incident.closed_at = closed_at
    incident.save(update_fields=["closed_at"])
    audit.announce(
        action,
        actor=by,
        subject=f"incident:{incident.pk}",
        kind=incident.kind,
        about=incident.subject,
    )
    return incident
