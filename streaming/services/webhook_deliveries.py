"""Sending what webhooks are told: at least once, each time with the same id.

A run claims what is due, sends it, and notes how that went; what it claimed and did not note, since it
was killed, is due again after ``CLAIM``. An endpoint that takes nothing (no answer, 3xx, 401, 429, 5xx,
…) is left alone for as long as it has failed already, and asked with one message; a message that is
refused by itself (400, 422, …) is tried again ever more rarely, and holds up no other. Endpoints are
told beside each other: a slow one costs the others nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp
from django.db import transaction
from django.utils import timezone

from streaming.core import signing
from streaming.models import StreamSession, WebhookDelivery, WebhookEndpoint
from streaming.services import audit, webhooks
from streaming.services.outbound import AddressRefused, Unanswered, outbound, post
from streaming.services.sql import changed, rows

DELIVERIES_OF_ONE = 64
DELIVERIES_OF_ALL = 512
"""What a run takes on, of one endpoint and of all of them."""
LANES = 4
"""Messages on their way to one endpoint at once."""
START_SECONDS = 1.0
"""A run begins to send for so long: the worker has other things to do, one after the other."""
ANSWER_SECONDS = 3.0
"""What a receiver has for an answer. It should accept first and work afterwards."""
CLAIM = timedelta(minutes=1)

FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(hours=2)
GIVE_UP = timedelta(hours=24)
"""So long a message is tried."""
DISABLE = timedelta(days=3)
"""An endpoint that has taken nothing for so long is switched off."""

KEEP = timedelta(days=30)
FORGET_ROWS = 5000

# Endpoints in any order, so that none is always the one for which there is no room.
_CLAIM = """
WITH endpoints AS MATERIALIZED (
    SELECT id, CASE WHEN failing_since IS NULL THEN %(of_one)s ELSE 1 END AS room
    FROM streaming_webhookendpoint
    WHERE is_active AND (retry_at IS NULL OR retry_at <= clock_timestamp())
    ORDER BY random()
), chosen AS MATERIALIZED (
    SELECT due.id FROM endpoints CROSS JOIN LATERAL (
        SELECT d.id FROM streaming_webhookdelivery d
        WHERE d.endpoint_id = endpoints.id AND d.state = 'waiting'
            AND d.next_try_at <= clock_timestamp()
        ORDER BY d.next_try_at LIMIT endpoints.room FOR UPDATE SKIP LOCKED
    ) due
    LIMIT %(of_all)s
)
UPDATE streaming_webhookdelivery d SET next_try_at = clock_timestamp() + %(claim)s
FROM chosen WHERE d.id = chosen.id RETURNING d.id
"""

_GIVE_UP = """
WITH given_up AS (
    UPDATE streaming_webhookdelivery d SET state = 'given_up'
    FROM streaming_webhookendpoint e
    WHERE e.id = d.endpoint_id AND d.state = 'waiting' AND d.created_at < now() - %(after)s
        AND (d.tries > 0 OR e.failing_since IS NOT NULL OR NOT e.is_active)
    RETURNING d.endpoint_id, d.error
)
SELECT endpoint_id, count(*), max(error) FROM given_up GROUP BY endpoint_id
"""

_FORGET = """
DELETE FROM streaming_webhookdelivery WHERE id IN (
    SELECT id FROM streaming_webhookdelivery WHERE created_at < now() - %s
    ORDER BY created_at LIMIT %s
)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How sending one message went; ``again_in``: seconds, where the receiver has said so."""

    delivery: WebhookDelivery
    status: int | None
    error: str
    again_in: int | None = None

    @property
    def was_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def was_refused(self) -> bool:
        """This message; others may be taken. Any other 4xx is about the endpoint."""
        return self.status in (400, 409, 413, 415, 422)

    @property
    def is_gone(self) -> bool:
        return self.status == 410


def deliver_webhooks() -> dict[str, Any]:
    """Send what is due; how many were delivered, not delivered, and given up. ``more``: there is more."""
    given_up = _give_up()
    claimed = _claim()
    if not claimed:
        return {"delivered": 0, "unsuccessful": 0, "given_up": given_up, "more": False}
    outcomes = asyncio.run(_send_all(claimed, _end_users(claimed)))
    tried = {outcome.delivery.pk for outcome in outcomes}
    WebhookDelivery.objects.filter(pk__in={d.pk for d in claimed} - tried).update(
        next_try_at=timezone.now()
    )
    by_endpoint: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_endpoint.setdefault(outcome.delivery.endpoint_id, []).append(outcome)
    for endpoint_id in sorted(by_endpoint):
        _note(endpoint_id, by_endpoint[endpoint_id], timezone.now())
    delivered = sum(outcome.was_taken for outcome in outcomes)
    return {
        "delivered": delivered,
        "unsuccessful": len(outcomes) - delivered,
        "given_up": given_up,
        "more": delivered > 0 and (len(tried) < len(claimed) or len(claimed) >= DELIVERIES_OF_ONE),
    }


def forget_deliveries() -> dict[str, Any]:
    """Delete what was told long ago, or could not be; how many. ``more``: there is more."""
    forgotten = changed(_FORGET, KEEP, FORGET_ROWS)
    return {"forgotten": forgotten, "more": forgotten == FORGET_ROWS}


def body_of(payload: dict[str, Any], end_user: str) -> bytes:
    """The message as it is sent. Who asked is looked up now: no copy of that is kept for it."""
    data = {**payload["data"], "user": end_user} if end_user else payload["data"]
    return json.dumps({**payload, "data": data}, separators=(",", ":")).encode()


def pause(failing_for: timedelta, jitter: float) -> timedelta:
    """How long an endpoint that has failed for so long is left alone: as long again, give or take.

    ``jitter``: from 0 to 1.
    """
    bounded = min(max(failing_for, FIRST_PAUSE), LONGEST_PAUSE)
    return bounded * (0.75 + jitter / 2)


def message_pause(tries: int, jitter: float) -> timedelta:
    """How long a message that was refused so often waits."""
    return min(FIRST_PAUSE * 3 ** min(tries, 10), LONGEST_PAUSE) * (0.75 + jitter / 2)


def _claim() -> list[WebhookDelivery]:
    values = {"of_one": DELIVERIES_OF_ONE, "of_all": DELIVERIES_OF_ALL, "claim": CLAIM}
    ids = [row[0] for row in rows(_CLAIM, values)]
    return list(
        WebhookDelivery.objects.filter(pk__in=ids).select_related("endpoint").order_by("created_at")
    )


def _end_users(claimed: Sequence[WebhookDelivery]) -> dict[Any, str]:
    ids = [delivery.session_id for delivery in claimed if delivery.session_id]
    return dict(StreamSession.objects.filter(pk__in=ids).values_list("pk", "end_user"))


async def _send_all(claimed: Sequence[WebhookDelivery], end_users: dict[Any, str]) -> list[Outcome]:
    ends = time.monotonic() + START_SECONDS
    failing: set[int] = set()

    async def send(client: aiohttp.ClientSession, waiting: list[WebhookDelivery]) -> list[Outcome]:
        """One lane of an endpoint's: one message after the other."""
        outcomes = []
        while waiting and waiting[0].endpoint_id not in failing and time.monotonic() < ends:
            delivery = waiting.pop(0)
            user = end_users.get(delivery.session_id, "")
            outcome = await _send(client, delivery, body_of(delivery.payload, user))
            outcomes.append(outcome)
            if not outcome.was_taken and not outcome.was_refused:
                failing.add(delivery.endpoint_id)
        return outcomes

    lanes: dict[int, list[WebhookDelivery]] = {}
    for delivery in claimed:
        lanes.setdefault(delivery.endpoint_id, []).append(delivery)
    async with outbound() as client:
        sent = await asyncio.gather(
            *(send(client, waiting) for waiting in lanes.values() for _ in range(LANES))
        )
    return [outcome for outcomes in sent for outcome in outcomes]


async def _send(client: aiohttp.ClientSession, delivery: WebhookDelivery, body: bytes) -> Outcome:
    now = int(timezone.now().timestamp())
    headers = {
        "content-type": "application/json",
        **signing.headers(webhooks.secrets(delivery.endpoint), str(delivery.pk), now, body),
    }
    try:
        answer = await post(client, delivery.endpoint.url, headers, body, ANSWER_SECONDS)
    except (AddressRefused, Unanswered) as exc:
        return Outcome(delivery, None, str(exc))
    return Outcome(delivery, answer.status, answer.text, answer.retry_after)


@transaction.atomic
def _note(endpoint_id: int, outcomes: Sequence[Outcome], now: datetime) -> None:
    """On an endpoint and its messages."""
    for outcome in outcomes:
        delivery = outcome.delivery
        delivery.tries += 1
        delivery.response_status = outcome.status
        delivery.error = "" if outcome.was_taken else outcome.error[:300]
        # What failed because of its endpoint waits for that, not by itself.
        delivery.next_try_at = now
        if outcome.was_taken:
            delivery.state = WebhookDelivery.State.DELIVERED
            delivery.delivered_at = now
        elif outcome.was_refused:
            delivery.next_try_at = now + message_pause(delivery.tries, random.random())
    WebhookDelivery.objects.bulk_update(
        [outcome.delivery for outcome in outcomes],
        ["state", "tries", "next_try_at", "response_status", "error", "delivered_at"],
    )
    endpoint = WebhookEndpoint.objects.select_for_update(no_key=True).filter(pk=endpoint_id).first()
    if endpoint is None:  # removed meanwhile
        return
    failed = [one for one in outcomes if not one.was_taken and not one.was_refused]
    if any(one.is_gone for one in failed):
        _disable(endpoint, len(failed), "it answered 410 Gone")
    elif failed:
        endpoint.failing_since = endpoint.failing_since or now
        if now - endpoint.failing_since > DISABLE:
            _disable(endpoint, len(failed), f"it took nothing for {DISABLE.days} days")
            return
        said = max((one.again_in for one in failed if one.again_in is not None), default=0)
        waits = pause(now - endpoint.failing_since, random.random())
        endpoint.retry_at = now + min(max(waits, timedelta(seconds=said)), LONGEST_PAUSE)
        endpoint.save(update_fields=["failing_since", "retry_at"])
    elif endpoint.failing_since is not None:
        endpoint.failing_since = endpoint.retry_at = None
        endpoint.save(update_fields=["failing_since", "retry_at"])
        webhooks.close_incident(webhooks.FAILED, webhooks.subject_of(endpoint))


def _disable(endpoint: WebhookEndpoint, deliveries: int, why: str) -> None:
    webhooks.switch(endpoint, on=False, by=audit.SYSTEM, why=why)
    webhooks.fail(endpoint, deliveries, why)


def _give_up() -> int:
    """What was tried for too long; how many messages."""
    found = rows(_GIVE_UP, {"after": GIVE_UP})
    endpoints = WebhookEndpoint.objects.in_bulk([row[0] for row in found])
    for endpoint_id, count, said in found:
        webhooks.fail(endpoints[endpoint_id], count, said or "it took nothing for a day")
    return sum(count for _, count, _ in found)
