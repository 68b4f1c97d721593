"""Settlements as rows, for tests of what follows from them: quotas and usage events."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.models import Settlement, UsageRecord
from billing.services import quota, usage_events
from billing.services.periods import account_of, period_at
from streaming.core.ids import uuid7
from streaming.models import Tenant
from tests.billing.rows import add_tenant


def add_usage(tenant: Tenant | None = None, **columns: Any) -> UsageRecord:
    """A session that nothing was settled of yet."""
    columns = {
        "session_id": uuid7(), "model": "m", "began_at": timezone.now(), "currency": "EUR", **columns,
    }  # fmt: skip
    return UsageRecord.objects.create(tenant=tenant or add_tenant(), **columns)


def add_line(
    usage: UsageRecord,
    output: int = 10,
    *,
    prompt: int = 0,
    amount: str | None = None,
    at: datetime | None = None,
    **columns: Any,
) -> Settlement:
    """The next settlement of a session; by default one EUR for each token."""
    at = at or timezone.now()
    account_of(usage.tenant_id)
    usage.settlements += 1
    begin, usage.billed_tokens = usage.billed_tokens, usage.billed_tokens + output
    usage.save()
    columns = {
        "kind": "ended", "state": "completed", "model": "m", "model_requested": "chat",
        "cached_tokens": 0, "evidence": "ack", "policy": "delivered", "coefficient": Decimal(1),
        "input_per_million": Decimal(1_000_000), "cached_input_per_million": Decimal(1_000_000),
        "output_per_million": Decimal(1_000_000), "currency": "EUR", "sent_tokens": 0,
        "compensated_tokens": 0, "discarded_tokens": 0, "regenerated_tokens": 0, **columns,
    }  # fmt: skip
    log = max(begin, usage.billed_tokens)
    return Settlement.objects.create(
        usage=usage, n=usage.settlements, tenant=usage.tenant,
        period=period_at(usage.tenant_id, at), from_tokens=begin, to_tokens=usage.billed_tokens,
        output_tokens=output, prompt_tokens=prompt, delivered_tokens=usage.billed_tokens,
        log_tokens=log, generated_tokens=log, began_at=usage.began_at, occurred_at=at,
        settled_at=at, amount=Decimal(output + prompt) if amount is None else Decimal(amount),
        **columns,
    )  # fmt: skip


@transaction.atomic
def settle(usage: UsageRecord, output: int = 10, **columns: Any) -> Settlement:
    """A settlement with all that goes with it here, as one transaction."""
    line = add_line(usage, output, **columns)
    quota.settled(usage, line)
    usage_events.announce(line, usage)
    return line
