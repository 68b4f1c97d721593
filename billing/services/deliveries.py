"""Sending usage events to their sinks: at least once, each time with the same id.

A run claims what is due, sends it, and notes how that went; what it claimed and did not note, since it
was killed, is due again after ``CLAIM``. A sink that takes nothing (no answer, 5xx, 3xx, 429, 401, …)
is left alone for as long as it has failed already, and asked with one event; an event that a sink
refuses (400, 422, …) is tried again by itself, ever more rarely. The events of a session go out in
order, as long as none of them fails.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp
from django.db import transaction
from django.utils import timezone

from billing.core.collectors import NotDeliverable, Verdict, message, verdict
from billing.locks import lock_sink
from billing.models import EventDelivery, UsageSink
from billing.services import audit, sinks
from streaming.core import signing
from streaming.core.nodes import NodeOptions
from streaming.engines.credentials import CredentialMissing, Credentials
from streaming.services.outbound import AddressRefused, Answer, Unanswered, outbound, post
from streaming.services.sql import changed, rows

EVENTS_OF_ONE = 128
EVENTS_OF_ALL = 512
"""What a run takes on, of one sink and of all of them."""
START_SECONDS = 1.0
"""A run begins to send for so long: the worker has other things to do, one after the other."""
ANSWER_SECONDS = 2.0
"""What a sink has for an answer. It should accept first and work afterwards."""
CLAIM = timedelta(minutes=1)

FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(hours=24)
GIVE_UP = timedelta(days=4)
"""A sink that has failed for so long is not told any more what has waited for as long."""
EVENT_TRIES = 12

KEEP = timedelta(days=30)
FORGET_ROWS = 5000

# One event for a sink that fails: if that is taken, the others follow. Sinks in any order, so that
# none is always the one for which there is no room.
_CLAIM = """
WITH sinks AS MATERIALIZED (
    SELECT id, CASE WHEN failing_since IS NULL THEN %(of_one)s ELSE 1 END AS room
    FROM billing_usagesink
    WHERE enabled AND (retry_at IS NULL OR retry_at <= clock_timestamp())
    ORDER BY random()
), chosen AS MATERIALIZED (
    SELECT due.id FROM sinks CROSS JOIN LATERAL (
        SELECT d.id FROM billing_eventdelivery d
        WHERE d.sink_id = sinks.id AND d.state = 'pending' AND d.next_at <= clock_timestamp()
        ORDER BY d.id LIMIT sinks.room FOR UPDATE SKIP LOCKED
    ) due
    LIMIT %(of_all)s
)
UPDATE billing_eventdelivery d SET next_at = clock_timestamp() + %(claim)s
FROM chosen WHERE d.id = chosen.id RETURNING d.id
"""

_GIVE_UP = """
WITH given_up AS (
    UPDATE billing_eventdelivery d SET state = 'failed', answered = 'given up: ' || left(answered, 280)
    FROM billing_usagesink s
    WHERE s.id = d.sink_id AND d.state = 'pending' AND s.enabled
        AND s.failing_since < now() - %(after)s AND d.created_at < now() - %(after)s
    RETURNING d.sink_id
)
SELECT sink_id, count(*) FROM given_up GROUP BY sink_id
"""


_FORGET = """
DELETE FROM billing_eventdelivery WHERE id IN (
    SELECT id FROM billing_eventdelivery
    WHERE state = 'delivered' AND delivered_at < now() - %s ORDER BY id LIMIT %s
)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How sending one event went; ``again_in``: seconds, where the sink has said so."""

    delivery: EventDelivery
    verdict: Verdict
    said: str
    again_in: int | None = None
    for_good: bool = False
    """It need not be tried again, whatever the verdict is."""


def deliver_usage_events() -> dict[str, Any]:
    """Send what is due; how many were delivered, refused, and given up. ``more``: there is more."""
    given_up = _give_up()
    claimed = _claim()
    if not claimed:
        return {"delivered": 0, "unsuccessful": 0, "given_up": given_up, "more": False}
    outcomes = asyncio.run(_send_all(claimed))
    tried = {outcome.delivery.pk for outcome in outcomes}
    EventDelivery.objects.filter(pk__in={d.pk for d in claimed} - tried).update(
        next_at=timezone.now()
    )
    given_up += _note_all(outcomes)
    delivered = sum(outcome.verdict is Verdict.TAKEN for outcome in outcomes)
    return {
        "delivered": delivered,
        "unsuccessful": len(outcomes) - delivered,
        "given_up": given_up,
        "more": delivered > 0 and (len(tried) < len(claimed) or len(claimed) >= EVENTS_OF_ONE),
    }


def send_now(delivery: EventDelivery) -> Outcome:
    """Send one event at once, whatever it waits for; how that went."""
    (outcome,) = asyncio.run(_send_all([delivery]))
    _note_all([outcome])
    return outcome


def forget_delivered() -> dict[str, Any]:
    """Delete what was delivered long ago; how many. ``more``: there is more.

    A replay does not need it: events are made from settlements.
    """
    forgotten = changed(_FORGET, KEEP, FORGET_ROWS)
    return {"forgotten": forgotten, "more": forgotten == FORGET_ROWS}


def pause(failing_for: timedelta, jitter: float) -> timedelta:
    """How long a sink that has failed for so long is left alone: as long again, give or take.

    ``jitter``: from 0 to 1.
    """
    bounded = min(max(failing_for, FIRST_PAUSE), LONGEST_PAUSE)
    return min(bounded * (0.75 + jitter / 2), LONGEST_PAUSE)


def event_pause(tries: int, jitter: float) -> timedelta:
    """How long an event that was refused so often waits."""
    longest = min(FIRST_PAUSE * 3 ** min(tries, EVENT_TRIES), LONGEST_PAUSE)
    return min(longest * (0.75 + jitter / 2), LONGEST_PAUSE)


def _claim() -> list[EventDelivery]:
    values = {"of_one": EVENTS_OF_ONE, "of_all": EVENTS_OF_ALL, "claim": CLAIM}
    ids = [row[0] for row in rows(_CLAIM, values)]
    return list(
        EventDelivery.objects.filter(pk__in=ids).select_related("sink__tenant").order_by("pk")
    )


async def _send_all(claimed: Iterable[EventDelivery]) -> list[Outcome]:
    """Sinks and sessions beside each other, the events of one session one after the other."""
    ends = time.monotonic() + START_SECONDS
    failing: set[int] = set()
    groups: dict[tuple[int, str], list[EventDelivery]] = {}
    for delivery in claimed:
        session = delivery.event_id.rpartition(":")[0]
        groups.setdefault((delivery.sink_id, session), []).append(delivery)
    async with outbound() as client:
        sent = await asyncio.gather(
            *(_send_in_order(client, group, ends, failing) for group in groups.values())
        )
    return list(itertools.chain.from_iterable(sent))


async def _send_in_order(
    client: aiohttp.ClientSession, group: Sequence[EventDelivery], ends: float, failing: set[int]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for delivery in group:
        if delivery.sink_id in failing or time.monotonic() > ends:
            break
        outcome = await _send(client, delivery)
        outcomes.append(outcome)
        if outcome.verdict in (Verdict.SINK_FAILING, Verdict.SINK_GONE):
            failing.add(delivery.sink_id)
        if outcome.verdict is not Verdict.TAKEN and not outcome.for_good:
            break
    return outcomes


async def _send(client: aiohttp.ClientSession, delivery: EventDelivery) -> Outcome:
    sink, now = delivery.sink, timezone.now()
    try:
        wanted = message(sink.kind, sink.options, delivery.body, now)
        credentials = Credentials(NodeOptions(credential=sink.credential))
        headers = {**wanted.headers, **credentials.headers()}
        if sink.kind == UsageSink.Kind.WEBHOOK:
            headers |= signing.headers(
                sinks.secrets(sink), delivery.event_id, int(now.timestamp()), wanted.body
            )
        answer = await post(client, sink.url, headers, wanted.body, ANSWER_SECONDS)
    except NotDeliverable as exc:
        return Outcome(delivery, Verdict.EVENT_REFUSED, str(exc), for_good=True)
    except (AddressRefused, CredentialMissing, Unanswered) as exc:
        return Outcome(delivery, Verdict.SINK_FAILING, str(exc))
    return Outcome(
        delivery,
        verdict(sink.kind, answer.status, answer.text),
        _said(answer, credentials),
        answer.retry_after,
    )


def _said(answer: Answer, credentials: Credentials) -> str:
    text = credentials.redacted(answer.text.encode()).decode()
    return f"{answer.status} {text}".strip()[:300]


def _note_all(outcomes: Sequence[Outcome]) -> int:
    """Write down how it went, one transaction a sink; how many events were given up."""
    by_sink: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_sink.setdefault(outcome.delivery.sink_id, []).append(outcome)
    for sink_id in sorted(by_sink):
        _note_sink(sink_id, by_sink[sink_id], timezone.now())
    return sum(outcome.delivery.state == EventDelivery.State.FAILED for outcome in outcomes)


def _note(outcome: Outcome, now: datetime) -> None:
    """On the event."""
    delivery = outcome.delivery
    delivery.tries += 1
    delivery.answered = outcome.said[:300]
    match outcome.verdict:
        case Verdict.TAKEN:
            delivery.state = EventDelivery.State.DELIVERED
            delivery.delivered_at = now
        case Verdict.EVENT_REFUSED:
            delivery.next_at = now + event_pause(delivery.tries, random.random())
            if outcome.for_good or delivery.tries >= EVENT_TRIES:
                delivery.state = EventDelivery.State.FAILED
        case _:
            delivery.next_at = now  # it waits for its sink


@transaction.atomic
def _note_sink(sink_id: int, outcomes: Sequence[Outcome], now: datetime) -> None:
    """On a sink and its events."""
    for outcome in outcomes:
        _note(outcome, now)
    EventDelivery.objects.bulk_update(
        [outcome.delivery for outcome in outcomes],
        ["state", "tries", "next_at", "answered", "delivered_at"],
    )
    sink = lock_sink(sink_id)
    lost = [o for o in outcomes if o.delivery.state == EventDelivery.State.FAILED]
    if lost:
        sinks.fail(sink, len(lost), lost[-1].said)
    gone = [o for o in outcomes if o.verdict is Verdict.SINK_GONE]
    failed = [o for o in outcomes if o.verdict is Verdict.SINK_FAILING]
    if gone:
        sinks.switch_sink(sink, enabled=False, actor=audit.SYSTEM, why="it answered 410 Gone")
        sinks.fail(sink, len(gone), gone[0].said)
    elif failed:
        sink.failing_since = sink.failing_since or now
        said = max((o.again_in for o in failed if o.again_in is not None), default=None)
        waits = pause(now - sink.failing_since, random.random())
        if said is not None:
            waits = min(max(waits, timedelta(seconds=said)), LONGEST_PAUSE)
        sink.retry_at = now + waits
        sink.save(update_fields=["failing_since", "retry_at"])
    elif sink.failing_since is not None:
        sink.failing_since = sink.retry_at = None
        sink.save(update_fields=["failing_since", "retry_at"])


def _give_up() -> int:
    """What has waited too long for sinks that take nothing; how many events."""
    found = rows(_GIVE_UP, {"after": GIVE_UP})
    for sink_id, count in found:
        sinks.fail(UsageSink.objects.get(pk=sink_id), count, "it took nothing for days")
    return sum(count for _, count in found)
