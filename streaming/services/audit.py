"""Telling the audit log what somebody did. It is kept by billing, which reads the outbox."""

from __future__ import annotations

from uuid import UUID

from django.utils import timezone

from streaming.models import OutboxMessage


def announce(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    **data: str | int | bool | None,
) -> None:
    """Have it audited. To be called in the transaction of what was done.

    ``action`` like ``node.drain``; ``actor`` like ``user:alice``, ``key:ub-live-abcd`` or
    ``command:root``; ``subject`` like ``node:gpu-1``. Nothing personal and no content in ``data``.
    """
    OutboxMessage.objects.create(
        session_id=session_id,
        kind=OutboxMessage.Kind.AUDIT,
        data={
            "action": action,
            "actor": actor,
            "subject": subject,
            "tenant_id": tenant_id,
            "data": data,
        },
        created_at=timezone.now(),
    )
