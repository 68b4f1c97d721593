"""What billing has to say when streaming forgets who asked. It knows no end user itself: usage,
settlements and the ledger name sessions, tenants and cost centres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from billing.core import money
from billing.models import UsageRecord
from streaming.services.sql import rows

# A month is closed once ledger, settlements and log were found to agree (``services.closing``).
_CLOSED = """
SELECT u.session_id FROM billing_usagerecord u
WHERE u.session_id = ANY(%s) AND EXISTS (
    SELECT 1 FROM billing_settlement s WHERE s.usage_id = u.session_id
) AND NOT EXISTS (
    SELECT 1 FROM billing_settlement s JOIN billing_billingperiod p ON p.id = s.period_id
    WHERE s.usage_id = u.session_id AND p.closed_at IS NULL
) AND NOT EXISTS (
    SELECT 1 FROM streaming_outboxmessage m
    WHERE m.session_id = u.session_id AND m.handled_at IS NULL AND m.kind <> 'audit'
)
"""


def may_reduce(session_ids: Iterable[UUID]) -> set[UUID]:
    """Those of these sessions all of whose lines are in closed months, with nothing waiting."""
    return {session_id for (session_id,) in rows(_CLOSED, list(session_ids))}


def usage_of(session_ids: Iterable[UUID]) -> Mapping[UUID, dict[str, Any]]:
    """What was used and charged, by session; no floats. Of those that were settled."""
    found = UsageRecord.objects.filter(pk__in=list(session_ids), settlements__gt=0)
    return {
        usage.pk: {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "delivered_tokens": usage.delivered_tokens,
            "billed_tokens": usage.billed_tokens,
            "currency": usage.currency,
            "amount": money.plain(usage.amount),
        }
        for usage in found
    }
