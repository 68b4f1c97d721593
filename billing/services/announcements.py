"""From the outbox into the audit log: what people did to nodes, keys and the like."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from billing import locks
from billing.core.chain import moment
from billing.services import audit
from streaming.models import OutboxMessage


@transaction.atomic
def append_waiting(limit: int = 200) -> int:
    """Bring up to ``limit`` announcements into the audit log, oldest first; how many.

    Each enters once: it is marked in the transaction of its link. Of two at once the second leaves
    all of them to the first, which keeps their order.
    """
    if not locks.only_announcer():
        return 0
    waiting = list(
        OutboxMessage.objects.select_for_update(skip_locked=True)
        .filter(kind=OutboxMessage.Kind.AUDIT, handled_at__isnull=True)
        .order_by("id")[:limit]
    )
    if not waiting:
        return 0
    OutboxMessage.objects.filter(pk__in=[message.pk for message in waiting]).update(
        handled_at=timezone.now()
    )
    audit.append_many([_draft(message) for message in waiting])
    return len(waiting)


def _draft(message: OutboxMessage) -> audit.Draft:
    said = message.data
    return audit.draft(
        said["action"],
        actor=said["actor"],
        subject=said["subject"],
        tenant_id=said["tenant_id"],
        session_id=message.session_id,
        data={**said["data"], "announced_at": moment(message.created_at)},
    )
