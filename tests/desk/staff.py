"""Members of staff, what they press, and what the audit log hears of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from streaming.models import Incident, OutboxMessage, StreamSession
from tests.tasks.rows import add_session

ALL = "all_tenants"


def member(name: str, permissions: Iterable[str] = (), **columns: Any) -> User:
    """A member of staff with these permissions."""
    user = User.objects.create_user(name, password="x", is_staff=True, **columns)
    chosen = Permission.objects.filter(codename__in=permissions)
    assert {one.codename for one in chosen} == set(permissions)
    user.user_permissions.set(chosen)
    return user


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def told() -> list[tuple[str, str, str]]:
    """Action, actor and subject of what was announced since it was asked last."""
    messages = OutboxMessage.objects.filter(kind="audit").order_by("id")
    found = [
        (said["action"], said["actor"], said["subject"])
        for said in messages.values_list("data", flat=True)
    ]
    messages.delete()
    return found


def deed(name: str, *sessions: StreamSession | UUID) -> str:
    """The address of the page that asks whether that shall be done to them."""
    ids = [str(getattr(one, "pk", one)) for one in sessions]
    query = urlencode({"session": ids}, doseq=True)
    return f"{reverse('admin:streaming_streamsession_do', args=[name])}?{query}"


def incident_deed(name: str, incident: Incident) -> str:
    return reverse("admin:streaming_incident_do", args=[incident.pk, name])


def hit(incident: Incident, **columns: Any) -> StreamSession:
    """A session that the incident has hit."""
    columns = {
        "state": "completed", "outcome": "recovered", "review": "needed", "incident": incident,
        "interrupted_at": incident.opened_at, "interrupted_node": "gpu-a", "interrupted_seq": 3,
        "ended_at": incident.opened_at, **columns,
    }  # fmt: skip
    return add_session(None, **columns)


def interruption(**columns: Any) -> Incident:
    return Incident.objects.create(
        **{"kind": "interruption", "subject": "gpu-a", "cause": "engine_oom", **columns}
    )
