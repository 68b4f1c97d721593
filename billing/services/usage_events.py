"""Usage events: a CloudEvent for each settlement, and for each budget that is reached.

They are written in the transaction of what they tell of, one row a sink, so none is lost and none is
told that did not happen. The event of a settlement is made from its row alone and never changes: made
again it has the same id and the same body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from django.db.models import Q
from django.utils import timezone

from billing.conf import conf
from billing.core.chain import moment
from billing.core.money import plain
from billing.models import BudgetAlert, EventDelivery, Settlement, UsageRecord, UsageSink
from streaming.services.incidents import close_incident

SETTLED = "ai.unbroken.usage.settled"
BUDGET_REACHED = "ai.unbroken.budget.reached"
TEST = "ai.unbroken.test"

FAILED = "usage_events_failed"
"""The kind of the incident of a sink that was not told everything."""
REPLAY_ROWS = 500


def announce(settlement: Settlement, usage: UsageRecord) -> None:
    """Have a settlement told to the sinks of its tenant, in its transaction."""
    if sinks := _sinks(settlement.tenant_id):
        EventDelivery.objects.bulk_create(_deliveries(settlement, sinks), ignore_conflicts=True)


def announce_budget(alert: BudgetAlert, *, limit: Decimal, used: Decimal, currency: str) -> None:
    """Have a reached budget told to the webhooks of its tenant, in the alert's transaction."""
    sinks = _sinks(alert.account_id, kind=UsageSink.Kind.WEBHOOK)
    if not sinks:
        return
    is_spend = alert.measure == BudgetAlert.Measure.SPEND
    event_id = (
        f"budget:{alert.account_id}:{alert.period_name}:{alert.measure}:{alert.threshold}"
        f":{plain(limit)}"
    )
    body = cloud_event(
        event_id,
        BUDGET_REACHED,
        alert.account.tenant.name,
        moment(alert.at),
        {
            "period": alert.period_name,
            "measure": alert.measure,
            "threshold_percent": alert.threshold,
            "limit": plain(limit),
            "used": plain(used),
            "currency": currency if is_spend else None,
            "hard": alert.account.limits_are_hard,
        },
    )
    EventDelivery.objects.bulk_create(
        [_delivery(sink_id, event_id, BUDGET_REACHED, body) for sink_id in sinks],
        ignore_conflicts=True,
    )


def announce_test(sink: UsageSink) -> EventDelivery:
    """An event that says nothing, for one sink."""
    at = timezone.now()
    event_id = f"test:{sink.pk}:{at:%Y%m%dT%H%M%S%f}"
    subject = sink.tenant.name if sink.tenant else ""
    body = cloud_event(event_id, TEST, subject, moment(at), _nothing())
    return EventDelivery.objects.create(sink=sink, event_id=event_id, type=TEST, body=body)


def replay(sink: UsageSink, *, period_name: str = "", from_settlement: int = 0) -> int:
    """Send a sink the events of a period, or from a settlement on, (again); how many."""
    lines = Settlement.objects.filter(pk__gte=from_settlement).select_related("tenant", "period")
    if sink.tenant_id is not None:
        lines = lines.filter(tenant_id=sink.tenant_id)
    if period_name:
        lines = lines.filter(period__name=period_name)
    count = 0
    for batch in _batches(lines.order_by("pk")):
        EventDelivery.objects.bulk_create(
            [delivery for line in batch for delivery in _deliveries(line, [sink.pk])],
            update_conflicts=True,
            unique_fields=["sink", "event_id"],
            update_fields=["state", "tries", "next_at", "answered", "created_at", "delivered_at"],
        )
        count += len(batch)
    _try_again(sink)
    return count


def replay_failed(sink: UsageSink) -> int:
    """Try what was given up again, as if it were new; how many events."""
    now = timezone.now()
    count = EventDelivery.objects.filter(sink=sink, state=EventDelivery.State.FAILED).update(
        state=EventDelivery.State.PENDING, tries=0, next_at=now, created_at=now
    )
    _try_again(sink)
    return count


def _try_again(sink: UsageSink) -> None:
    """Now, whatever it has failed before."""
    UsageSink.objects.filter(pk=sink.pk).update(failing_since=None, retry_at=None)
    close_incident(FAILED, sink.name)


def cloud_event(event_id: str, type_: str, subject: str, at: str, data: dict[str, Any]) -> str:
    """A CloudEvent 1.0 in the structured JSON format."""
    event = {
        "specversion": "1.0",
        "id": event_id,
        "source": conf().event_source,
        "type": type_,
        "subject": subject,
        "time": at,
        "datacontenttype": "application/json",
        "data": data,
    }
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def settlement_id(settlement: Settlement) -> str:
    """The id of its event, the same for ever."""
    return f"{settlement.usage_id}:{settlement.n}"


def settlement_event(settlement: Settlement) -> str:
    """The event of a settlement, as JSON. Tokens are integers, money is text; both may be negative."""
    return cloud_event(
        settlement_id(settlement),
        SETTLED,
        settlement.tenant.name,
        moment(settlement.occurred_at),
        {
            "settlement": settlement.pk,
            "session_id": str(settlement.usage_id),
            "n": settlement.n,
            "kind": settlement.kind,
            "period": settlement.period.name,
            "model": settlement.model,
            "model_requested": settlement.model_requested,
            "cost_centre": settlement.cost_centre,
            "api_key_prefix": settlement.api_key_prefix,
            "state": settlement.state,
            "input_tokens": settlement.prompt_tokens,
            "cached_input_tokens": settlement.cached_tokens,
            "output_tokens": settlement.output_tokens,
            "total_tokens": settlement.prompt_tokens + settlement.output_tokens,
            "from_token": settlement.from_tokens,
            "to_token": settlement.to_tokens,
            "delivered_tokens": settlement.delivered_tokens,
            "evidence": settlement.evidence,
            "policy": settlement.policy,
            "coefficient": plain(settlement.coefficient),
            "price_plan": settlement.plan_id,
            "input_per_million": plain(settlement.input_per_million),
            "cached_input_per_million": plain(settlement.cached_input_per_million),
            "output_per_million": plain(settlement.output_per_million),
            "currency": settlement.currency,
            "amount": plain(settlement.amount),
            "corrects": settlement.corrects and settlement_id(settlement.corrects),
        },
    )


def _nothing() -> dict[str, Any]:
    """What collectors count is there, and zero."""
    return {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "amount": "0"}


def _sinks(tenant_id: int, kind: str = "") -> list[int]:
    """The sinks that are told what concerns a tenant."""
    sinks = UsageSink.objects.filter(
        Q(tenant_id=tenant_id) | Q(tenant_id__isnull=True), enabled=True
    )
    if kind:
        sinks = sinks.filter(kind=kind)
    return list(sinks.values_list("pk", flat=True))


def _deliveries(settlement: Settlement, sinks: list[int]) -> list[EventDelivery]:
    event_id, body = settlement_id(settlement), settlement_event(settlement)
    return [_delivery(sink_id, event_id, SETTLED, body) for sink_id in sinks]


def _delivery(sink_id: int, event_id: str, type_: str, body: str) -> EventDelivery:
    return EventDelivery(sink_id=sink_id, event_id=event_id, type=type_, body=body)


def _batches(lines: Any) -> Iterator[list[Settlement]]:
    """By key, so that a replay of millions holds few of them."""
    after = 0
    while batch := list(lines.filter(pk__gt=after)[:REPLAY_ROWS]):
        yield batch
        after = batch[-1].pk
