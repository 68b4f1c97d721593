"""Forgetting who asked, once nobody has to know any more.

What remains of a session then is a row of figures: tenant, model, times, counts and ranges of tokens,
digests, how it ended and why. Gone are the end user, the client's own ids, idempotency keys, what
events, attempts and evidence say in words, and what staff wrote about it.

Content goes first, always; and what a bill may still be argued about stays (``ports.may_reduce``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from streaming.conf import conf
from streaming.core.retention import began_before
from streaming.models import Tenant
from streaming.ports import ports
from streaming.services.partitions import today
from streaming.services.sql import changed, rows

BATCH = 500
RUN_SECONDS = 1.0
LONGEST = 100_000
"""Days; more are for ever, and no date."""

NOBODY = UUID(int=0)

_DUE = """
SELECT id, created_at FROM streaming_streamsession
WHERE tenant_id = %s AND purged_at IS NOT NULL AND reduced_at IS NULL
AND created_at < %s AND (created_at, id) > (%s, %s)
ORDER BY created_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""

# Why it was interrupted is kept: explanations and bills name it.
_FORGET = (
    """
    UPDATE streaming_streamsession SET end_user = %(end_user)s, request_id = '', evidence = '{}',
        reduced_at = now()
    WHERE id = ANY(%(ids)s)
    """,
    """
    UPDATE streaming_sessionevent SET data = CASE WHEN data ? 'cause'
        THEN jsonb_build_object('cause', data -> 'cause') ELSE '{}' END
    WHERE session_id = ANY(%(ids)s) AND data <> '{}'
    """,
    """
    UPDATE streaming_attempt SET end_detail = '', seam_note = '', evidence = '{}'
    WHERE session_id = ANY(%(ids)s)
    """,
    "UPDATE streaming_sessionreview SET note = '', ticket = '' WHERE session_id = ANY(%(ids)s)",
    "DELETE FROM streaming_idempotencykey WHERE session_id = ANY(%(ids)s)",
)


@dataclass(slots=True)
class _Place:
    """How far a tenant's sessions were looked at."""

    at: datetime
    session_id: UUID


def reduce_expired_metadata() -> dict[str, Any]:
    """Reduce sessions for about a second; ``more`` in the answer: there are others."""
    began = time.monotonic()
    reduced = 0
    for tenant_id, before in _periods():
        place = _Place(datetime.min.replace(tzinfo=before.tzinfo), NOBODY)
        while (done := _reduce_batch(tenant_id, before, place)) is not None:
            reduced += done
            if time.monotonic() - began > RUN_SECONDS:
                return {"reduced": reduced, "more": True}
    return {"reduced": reduced, "more": False}


def reduce(ids: Sequence[UUID], *, end_user: str = "") -> None:
    """Forget the metadata of sessions whose content was purged and whose rows the caller has locked.

    ``end_user``: what stands for theirs from now on.
    """
    for statement in _FORGET:
        changed(statement, {"ids": list(ids), "end_user": end_user})


def _periods() -> Iterator[tuple[int, datetime]]:
    """Tenants, and before when what they began is to be reduced."""
    for pk, own in Tenant.objects.order_by("pk").values_list("pk", "metadata_days"):
        days = conf().metadata_days if own is None else own
        if 0 < days <= LONGEST:
            yield pk, began_before(today(), days)


@transaction.atomic
def _reduce_batch(tenant_id: int, before: datetime, place: _Place) -> int | None:
    """How many were reduced; None: there is nothing more of the tenant to be looked at.

    Months are closed one after the other, so where nothing of a batch may be reduced nothing after it
    may.
    """
    found = rows(_DUE, tenant_id, before, place.at, place.session_id, BATCH)
    if not found:
        return None
    place.session_id, place.at = found[-1]
    allowed = ports.may_reduce([session_id for session_id, _ in found])
    if not allowed:
        return None
    reduce(sorted(allowed))
    return len(allowed)
