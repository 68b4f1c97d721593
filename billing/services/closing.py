"""Closing a month: what has to be in order first, and what is frozen then."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.conf import conf
from billing.core import money
from billing.core.differences import Kind
from billing.errors import BillingError, PeriodNotReady
from billing.locks import lock_period
from billing.models import BillingPeriod, PeriodTotal, Settlement
from billing.services import audit, bulk_credits, credits
from billing.services.periods import account_of
from billing.services.reconciliation import Report, Total, reconcile, totals_of, was_closed
from billing.services.usage_events import FAILED as EVENTS_FAILED
from billing.services.verification import INCIDENT as AUDIT_BROKEN
from streaming.runtime.incidents import IncidentKind
from streaming.services.sql import rows

logger = logging.getLogger(__name__)

NOT_OVER = "not_over"
"""The one item that nothing overrides: lines of the period are still to come."""
UNPRICED = "unpriced_usage"
TRIES = 5
LISTED = 100
"""Differences that a stored checklist names."""

_WAITING = """
SELECT count(DISTINCT s.id) FROM streaming_outboxmessage m
JOIN streaming_streamsession s ON s.id = m.session_id
WHERE m.handled_at IS NULL AND m.kind <> 'audit' AND s.tenant_id = %s AND m.created_at < %s
"""

EVERYBODYS = (AUDIT_BROKEN, str(IncidentKind.SWEEPER_SILENT))
"""Incidents that no tenant's month is closed with: while they last nothing is sure to be settled."""

_INCIDENTS = """
SELECT count(*) FROM streaming_incident i
WHERE i.closed_at IS NULL AND (i.kind = ANY(%s) OR i.kind <> %s AND EXISTS (
    SELECT 1 FROM streaming_streamsession s WHERE s.id = i.session_id AND s.tenant_id = %s
))
"""

_EVENTS_FAILED = """
SELECT count(*) FROM streaming_incident i JOIN billing_usagesink u ON u.name = i.subject
WHERE i.closed_at IS NULL AND i.kind = %s AND u.tenant_id = %s
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that has to be in order. ``count``: in how many cases it is not."""

    name: str
    asks: str
    count: int
    says: str = ""

    @property
    def is_open(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class Checklist:
    """What was found of a period, and the reconciliation that it rests on."""

    period: BillingPeriod
    items: tuple[Item, ...]
    report: Report

    @property
    def open(self) -> list[Item]:
        """What is not in order."""
        return [item for item in self.items if item.is_open]

    def blocking(self, despite: frozenset[str] = frozenset()) -> list[Item]:
        """What keeps the period open although ``despite`` is put up with."""
        return [item for item in self.open if item.name == NOT_OVER or item.name not in despite]

    def as_dict(self, despite: frozenset[str] = frozenset()) -> dict[str, Any]:
        """For JSON: no floats."""
        return {
            "items": {
                item.name: {"asks": item.asks, "open": item.count, "says": item.says}
                for item in self.items
            },
            "despite": sorted(despite),
            "report": self.report.as_dict(),
            "differences": [
                difference.as_dict() for difference in self.report.differences[:LISTED]
            ],
        }


ITEMS = {
    NOT_OVER: "the period is over",
    "unsettled": "all that ended or was suspended in it is settled",
    "differences": "ledger, settlements and log agree",
    "engine_usage": "the engines' own counts agree",
    "unpriced": "all usage had a price",
    "credit_requests": "all requests for credits are decided, and booked",
    "incidents": "no incident of its sessions, of the audit log or of the worker is open",
    "usage_events": "the tenant's own sinks were told of all usage",
    "earlier_periods": "all periods before it are closed",
}


def checklist(period: BillingPeriod) -> Checklist:
    """Look at everything that has to be in order; nothing is changed."""
    report = reconcile(period)
    apart = report.count(Kind.UNSETTLED, Kind.ENGINE_USAGE)
    found = {
        NOT_OVER: int(period.ends_at > timezone.now()),
        "unsettled": report.count(Kind.UNSETTLED) + _waiting(period),
        "differences": sum(report.found.values()) - apart,
        "engine_usage": report.count(Kind.ENGINE_USAGE),
        "unpriced": _unpriced(period),
        "credit_requests": credits.waiting(period.tenant_id).count()
        + bulk_credits.undecided(period.tenant_id).count(),
        "incidents": _incidents(period),
        "usage_events": int(rows(_EVENTS_FAILED, EVENTS_FAILED, period.tenant_id)[0][0]),
        "earlier_periods": _earlier(period),
    }
    says = {NOT_OVER: f"it ends at {period.ends_at:%Y-%m-%d %H:%M %Z}"} if found[NOT_OVER] else {}
    items = (Item(name, asks, found[name], says.get(name, "")) for name, asks in ITEMS.items())
    return Checklist(period, tuple(items), report)


def close_period(
    period_id: int, *, actor: str, despite: frozenset[str] = frozenset()
) -> BillingPeriod:
    """Close a period for good: its totals are rounded and frozen, and nothing enters it any more.

    A period that is closed already is returned as it is. ``despite`` names items of the checklist
    that are put up with; they are recorded with it and in the audit log. Raises ``PeriodNotReady``
    with the checklist when others are open; ``BillingError`` for a name that no item has, and for a
    period that was closed before and reopened by other means.
    """
    if unknown := despite - (ITEMS.keys() - {NOT_OVER}):
        raise BillingError(
            f"Nothing that can be put up with is called {', '.join(sorted(unknown))}."
        )
    for _ in range(TRIES):
        period = BillingPeriod.objects.select_related("tenant").get(pk=period_id)
        if period.closed_at is not None:
            return period
        # It may take minutes, so nobody is kept from adding lines; then it is looked at again.
        found = checklist(period)
        if blocking := found.blocking(despite):
            names = ", ".join(item.name for item in blocking)
            raise PeriodNotReady(f"{period} cannot be closed: {names}.", found.as_dict(despite))
        closed = _close_as_found(found, actor, despite)
        if closed is not None:
            return closed
    raise PeriodNotReady(
        f"{period} cannot be closed: lines are still being added to it.", found.as_dict(despite)
    )


@transaction.atomic
def _close_as_found(found: Checklist, actor: str, despite: frozenset[str]) -> BillingPeriod | None:
    """Close the period if its lines are those that were looked at; else None."""
    period = lock_period(found.period.pk)
    if period.closed_at is not None:
        return period
    if was_closed(period):
        raise BillingError(
            f"{period} was closed before, and was reopened behind the application's back: see"
            " verify_audit."
        )
    lines = totals_of(period)
    if lines != found.report.totals:
        return None
    totals = [_frozen(period, total) for total in lines]
    period.closed_at = timezone.now()
    period.closed_by = actor
    period.checklist = found.as_dict(despite)
    # Names change later; what is exported of a closed month does not.
    account, tenant = account_of(period.tenant_id), found.period.tenant
    period.account_name = account.legal_name or tenant.display_name or tenant.name
    period.issuer = conf().invoice_issuer
    period.save(update_fields=["closed_at", "closed_by", "checklist", "account_name", "issuer"])
    links = [
        audit.draft_of(
            "period.total",
            total,
            actor=actor,
            tenant_id=period.tenant_id,
            data={
                "currency": total.currency,
                "lines": total.lines,
                "exact": total.exact,
                "rounded": total.rounded,
                "rule": total.rule,
            },
        )
        for total in totals
    ]
    links.append(
        audit.draft_of(
            "period.closed",
            period,
            actor=actor,
            tenant_id=period.tenant_id,
            data={
                "name": period.name,
                "open": {item.name: item.count for item in found.open},
                "despite": sorted(despite),
                "sessions": found.report.sessions,
                "lines": found.report.lines,
            },
        )
    )
    audit.append_many(links)
    logger.info("period %s of tenant %s is closed", period.name, period.tenant_id)
    return period


def _frozen(period: BillingPeriod, total: Total) -> PeriodTotal:
    """The only place where money is rounded: once, when the last line is in."""
    return PeriodTotal.objects.create(
        period=period,
        currency=total.currency,
        lines=total.lines,
        exact=total.amount,
        rounded=money.rounded(total.amount, total.currency),
        rule=money.ROUNDING_RULE,
    )


def _waiting(period: BillingPeriod) -> int:
    """Sessions of the tenant of which something from the period waits in the outbox."""
    return int(rows(_WAITING, period.tenant_id, period.ends_at)[0][0])


def _unpriced(period: BillingPeriod) -> int:
    unpriced = Settlement.objects.filter(period=period, plan=None)
    return unpriced.exclude(output_tokens=0, prompt_tokens=0).count()


def _incidents(period: BillingPeriod) -> int:
    """Those of nodes are for operators; usage without a price is an item of its own."""
    return int(rows(_INCIDENTS, list(EVERYBODYS), UNPRICED, period.tenant_id)[0][0])


def _earlier(period: BillingPeriod) -> int:
    before = BillingPeriod.objects.filter(tenant_id=period.tenant_id, closed_at=None)
    return before.filter(starts_at__lt=period.starts_at).count()
