"""Appending to the audit log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.core.chain import Link, canonical
from billing.locks import lock_audit_head
from billing.models import AuditEntry

SYSTEM = "system"


@transaction.atomic
def append(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    data: dict[str, Any] | None = None,
) -> AuditEntry:
    """Add a link, in the transaction of what it tells of. Locks the chain's end: call it last.

    ``data`` may hold text, integers, booleans, decimals and times; nothing personal, no content.
    Raises ``TypeError`` for floats.
    """
    text = canonical(data or {})
    head = lock_audit_head()
    link = Link(
        head.seq + 1, timezone.now(), action, actor, subject[:200], tenant_id, session_id, text
    )
    previous = bytes(head.hash)
    entry = AuditEntry.objects.create(
        seq=link.seq,
        at=link.at,
        action=link.action,
        actor=link.actor,
        subject=link.subject,
        tenant_id=link.tenant_id,
        session_id=link.session_id,
        data=link.data,
        previous=previous,
        hash=link.hash(previous),
    )
    head.seq, head.hash = link.seq, entry.hash
    head.save(update_fields=["seq", "hash"])
    return entry
