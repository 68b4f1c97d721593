"""Usage computed anew from what streaming has stored, and compared with what was settled.

Nothing that was settled is changed: what is missing is settled now, and what is different becomes
one more settlement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q, Sum

from billing.core import money
from billing.core.months import bounds
from billing.models import LedgerEntry, Settlement, UsageRecord, Waste
from billing.services.charging import lines_due
from billing.services.figures import CONTENT, Figures, figures
from billing.services.periods import account_of
from billing.services.prices import plan_for
from billing.services.settlement import settle_session
from streaming.core.state import SessionState
from streaming.models import Attempt, OutboxMessage, StreamSession, Tenant
from streaming.services.partitions import KEEP_LOG
from streaming.services.sql import rows

BATCH = 500

_COUNTED = """
SELECT session_id, sum(last_seq - first_seq + 1 - (terminal IS NOT NULL)::int)::int8
FROM streaming_tokencheckpoint WHERE session_id = ANY(%s) AND expires_on = ANY(%s) GROUP BY session_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One session. ``differences``: by figure, what is stored and what it should be; none: all is
    well. ``waits``: it was announced, and nobody has settled it yet."""

    session: StreamSession
    waits: bool
    differences: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        told = ", ".join(
            f"{name} {_spelled(stored)}, should be {_spelled(due)}"
            for name, (stored, due) in self.differences.items()
        )
        return f"{self.session.pk} ({self.session.tenant.name}): {told}"


def compare(*, tenant: str = "", period: str = "") -> Iterator[Compared]:
    """Every session that has ended or is suspended, oldest first within each tenant.

    ``tenant``: its name; empty: all. ``period``: sessions that lived in that month (2026-11), as the
    tenant counts. Raises ``Tenant.DoesNotExist``, and ``ValueError`` for what is no month.
    """
    tenants = [Tenant.objects.get(name=tenant)] if tenant else Tenant.objects.order_by("pk")
    for one in tenants:
        span = bounds(period, account_of(one.pk).time_zone) if period else None
        last: UUID | None = None
        while batch := _compared(_page(one.pk, span, last)):
            yield from batch
            last = batch[-1].session.pk


def rebuild(*, tenant: str = "", period: str = "") -> Iterator[tuple[Compared, Compared]]:
    """Settle what ``compare`` finds different or waiting; each session as it was, and as it is."""
    for before in compare(tenant=tenant, period=period):
        if before.waits or before.differences:
            settle_session(before.session.pk)
            (after,) = _compared([before.session.pk])
            yield before, after


def _page(tenant_id: int, span: tuple[datetime, datetime] | None, last: UUID | None) -> list[UUID]:
    found = StreamSession.objects.filter(
        Q(ended_at__isnull=False) | Q(state=SessionState.SUSPENDED.value), tenant=tenant_id
    )
    if span is not None:
        begins, ends = span
        found = found.filter(
            Q(ended_at__gte=begins) | Q(ended_at__isnull=True, suspended_at__gte=begins),
            created_at__lt=ends,
        )
    if last is not None:
        found = found.filter(pk__gt=last)
    return list(found.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _compared(ids: list[UUID]) -> list[Compared]:
    """These sessions, all as of one moment."""
    if not ids:
        return []
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(KEEP_LOG)
        return _read(ids)


def _read(ids: list[UUID]) -> list[Compared]:
    found_sessions = StreamSession.objects.select_related("fence", "tenant").defer(*CONTENT)
    sessions = list(found_sessions.filter(pk__in=ids).order_by("pk"))
    attempts = _by_session(Attempt.objects.filter(session__in=ids).order_by("number"))
    lines = _by_session(Settlement.objects.filter(usage__in=ids).order_by("n"))
    usages = UsageRecord.objects.select_related("plan").in_bulk(ids)
    booked = dict(
        LedgerEntry.objects.filter(settlement__usage__in=ids)
        .values_list("settlement__usage")
        .annotate(sum=Sum("amount"))
    )
    wasted = dict(
        Waste.objects.filter(usage__in=ids).values_list("usage").annotate(sum=Sum("tokens"))
    )
    counted = dict(rows(_COUNTED, ids, list({session.expires_on for session in sessions})))
    waiting = set(
        OutboxMessage.objects.filter(handled_at=None, session_id__in=ids)
        .exclude(kind=OutboxMessage.Kind.AUDIT)
        .values_list("session_id", flat=True)
    )
    result = []
    for session in sessions:
        key = session.pk
        found = figures(session, session.fence, attempts[key])
        differences = _differences(
            found, usages.get(key), lines[key], booked.get(key, Decimal(0)), wasted.get(key, 0)
        )
        if session.purged_at is None and counted.get(key, 0) != found.log:
            differences["tokens in the log"] = found.log, counted.get(key, 0)
        result.append(Compared(session=session, waits=key in waiting, differences=differences))
    return result


def _differences(
    found: Figures,
    usage: UsageRecord | None,
    lines: list[Settlement],
    booked: Decimal,
    wasted: int,
) -> dict[str, tuple[Any, Any]]:
    if usage is None:
        session = found.session
        plan = plan_for(session.tenant_id, session.model, session.created_at)
    else:
        plan = usage.plan
    missing = lines_due(lines, found, plan)
    billed = sum(line.output_tokens for line in lines)
    prompt = sum(line.prompt_tokens for line in lines)
    amount = money.total(line.amount for line in lines)
    pairs: dict[str, tuple[Any, Any]] = {
        "settlements": (len(lines), len(lines) + len(missing)),
        "billed tokens": (billed, billed + sum(line.output for line in missing)),
        "prompt tokens": (prompt, prompt + sum(line.prompt for line in missing)),
    }
    if usage is not None:
        pairs |= {
            "delivered tokens": (usage.delivered_tokens, found.delivered),
            "generated tokens": (usage.generated_tokens, found.generated),
            "discarded tokens": (usage.discarded_tokens, found.discarded),
            "regenerated tokens": (usage.regenerated_tokens, found.regenerated),
            "sum of billed tokens": (usage.billed_tokens, billed),
            "sum of amounts": (usage.amount, amount),
            "amount in the ledger": (booked, amount),
        }
        if found.ended:
            pairs["wasted tokens"] = wasted, found.generated - found.delivered
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _by_session(found: Iterable[Any]) -> defaultdict[UUID, list[Any]]:
    result: defaultdict[UUID, list[Any]] = defaultdict(list)
    for row in found:
        key = row.usage_id if isinstance(row, Settlement) else row.session_id
        result[key].append(row)
    return result


def _spelled(value: Any) -> str:
    return money.plain(value) if isinstance(value, Decimal) else str(value)
