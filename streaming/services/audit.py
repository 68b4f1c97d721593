"""Telling the audit log what somebody did. It is kept by billing, which reads the outbox.

``action`` is like ``node.drain``; ``actor`` like ``user:alice``, ``key:ub-live-abcd``,
``command:root`` or ``system``; ``subject`` like ``node:gpu-1``. Nothing personal and no content goes
into the data.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from django.utils import timezone

from streaming.models import OutboxMessage

SYSTEM = "system"

_REFUSED = re.compile("[\x00\ud800-\udfff]")  # by PostgreSQL

_ANNOUNCE = """
INSERT INTO streaming_outboxmessage (session_id, kind, data, created_at)
VALUES (%s, 'audit', %s::jsonb, now())
"""


def announce(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    **data: Any,
) -> None:
    """Have it audited. To be called in the transaction of what was done."""
    announcement(
        action, actor=actor, subject=subject, tenant_id=tenant_id, session_id=session_id, **data
    ).save()


def announcement(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    **data: Any,
) -> OutboxMessage:
    """The row that ``announce`` adds, for who adds many at once."""
    return OutboxMessage(
        session_id=session_id,
        kind=OutboxMessage.Kind.AUDIT,
        data=_said(action, actor, subject, tenant_id, data),
        created_at=timezone.now(),
    )


async def announce_async(
    connection: psycopg.AsyncConnection[Any],
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    **data: Any,
) -> None:
    """``announce`` for gateways, on the connection whose transaction it belongs to."""
    said = _said(action, actor, subject, tenant_id, data)
    await connection.execute(_ANNOUNCE, (session_id, json.dumps(said)))


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Of the columns that differ what they were and are, for ``data``: ``{"weight": "1 → 2"}``."""
    return {
        column: f"{_spelled(was)} → {_spelled(after[column])}"
        for column, was in before.items()
        if was != after[column]
    }


def _said(
    action: str, actor: str, subject: str, tenant_id: int | None, data: dict[str, Any]
) -> dict[str, Any]:
    return {
        "action": action,
        "actor": _spelled(actor),
        "subject": _spelled(subject),
        "tenant_id": tenant_id,
        "data": {name: _spelled(value) for name, value in data.items()},
    }


def _spelled(value: Any) -> str | int | bool | None:
    """As the log takes it: no floats, for they have no exact spelling, and nothing nested."""
    match value:
        case None | bool() | int():
            return value
        case datetime():
            return value.isoformat()
        case list() | tuple() | dict():
            value = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return _REFUSED.sub("\ufffd", str(value))
