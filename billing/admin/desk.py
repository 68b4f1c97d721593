"""What the support desk shows of money: billing's side of ``streaming.admin.finance``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from billing.admin.audit import facts_of
from billing.admin.bulk_credit import begin_page, may_credit
from billing.admin.figures import bill_page, count, link_to, money
from billing.admin.ledger import BOOK, MOST_AT_ONCE, credit_page
from billing.core.money import plain, total
from billing.models import AuditEntry, BulkCredit, LedgerEntry, UsageRecord, Waste
from billing.services import bills
from billing.services.bills import Bill
from streaming.admin.finance import Amounts, AuditRow, Billed
from streaming.admin.pages import Tool
from streaming.models import Incident, StreamSession
from streaming.services.incident_figures import INTERRUPTION, sessions_of

USAGE = "billing.view_usagerecord"
LEDGER = "billing.view_ledgerentry"
LATEST = 50
LISTED = 20

_BY_HAND = Q(settlement__isnull=True)


class Desk:
    """Implements ``streaming.admin.finance.Finance``."""

    def billed(self, session_ids: Iterable[UUID]) -> Mapping[UUID, Billed]:
        """Less what people have given back."""
        by_hand = (
            LedgerEntry.objects.filter(_BY_HAND, session_id=OuterRef("pk"))
            .order_by()
            .values("session_id")
            .values(sum=Sum("amount"))
        )
        records = (
            UsageRecord.objects.filter(pk__in=list(session_ids), settlements__gt=0)
            .annotate(by_hand=Subquery(by_hand))
            .values_list("pk", "billed_tokens", "amount", "by_hand", "currency")
        )
        return {
            pk: Billed(tokens, total([amount, given or Decimal(0)]), currency)
            for pk, tokens, amount, given, currency in records
        }

    # --- one session -------------------------------------------------------------------------------

    def session_panel(self, request: HttpRequest, session: StreamSession) -> SafeString:
        if not request.user.has_perm(USAGE):
            return SafeString("")
        bill = _bill(session.pk)
        sees_ledger = request.user.has_perm(LEDGER)
        context = {"bill": bill, "session": session, "sees_ledger": sees_ledger}
        if bill is not None:
            context |= _shown(bill, sees_ledger)
        return render_to_string("admin/billing/session_panel.html", context, request)

    def session_tools(self, request: HttpRequest, session: StreamSession) -> Sequence[Tool]:
        found = []
        if request.user.has_perms([BOOK, LEDGER]):
            charges = list(_charges(session.pk)[:MOST_AT_ONCE])
            left = bills.left_of(charges)
            if open_ones := [charge.pk for charge in charges if left[charge.pk] > 0]:
                found.append(Tool("Credit…", credit_page(open_ones)))
        if request.user.has_perm(USAGE) and UsageRecord.objects.filter(pk=session.pk).exists():
            found.append(Tool("Bill", bill_page(session.pk)))
        return found

    def audit_rows(self, session_id: UUID) -> Sequence[AuditRow]:
        """The latest, newest first."""
        # Not by ``-seq``: to walk the whole log backwards would seem the cheaper way sometimes.
        entries = AuditEntry.objects.filter(session_id=session_id).order_by(-F("seq"))[:LATEST]
        return [
            AuditRow(
                entry.seq,
                f"{entry.at:%Y-%m-%d %H:%M:%S}",
                entry.actor,
                entry.action,
                facts_of(entry),
            )
            for entry in entries
        ]

    def evidence(self, session_id: UUID) -> dict[str, Any]:
        bill = _bill(session_id)
        return {} if bill is None else _told(bill)

    # --- an incident -------------------------------------------------------------------------------

    def incident_panel(self, request: HttpRequest, incident: Incident) -> SafeString:
        if incident.kind != INTERRUPTION or not request.user.has_perms([USAGE, LEDGER]):
            return SafeString("")
        sessions = sessions_of(incident)
        waste = (
            Waste.objects.filter(usage__in=sessions.values("pk"))
            .order_by()
            .values_list("currency")
            .annotate(tokens=Sum("tokens"), cost=Sum("cost"))
            .order_by("currency")
        )
        settled = UsageRecord.objects.filter(pk__in=sessions.values("pk"), settlements__gt=0)
        context = {
            "sums": [
                {
                    "charged": money(charged, currency),
                    "credited": money(credited, currency),
                    "in_all": money(total([charged, credited]), currency),
                }
                for currency, charged, credited in _sums_of(sessions)
            ],
            "settled": count(settled.count()),
            "waste": [
                {"tokens": count(tokens), "cost": money(cost, currency)}
                for currency, tokens, cost in waste
            ],
            "bulks": [
                (link_to(bulk, f"No. {bulk.pk}"), bulk)
                for bulk in BulkCredit.objects.filter(incident=incident).order_by("-pk")[:LISTED]
            ]
            if request.user.has_perm("billing.view_creditrequest")
            else [],
        }
        return render_to_string("admin/billing/incident_panel.html", context, request)

    def incident_tools(self, request: HttpRequest, incident: Incident) -> Sequence[Tool]:
        if incident.kind != INTERRUPTION or not may_credit(request):
            return ()
        return [Tool("Credit its sessions…", begin_page(incident))]

    def incident_amounts(
        self, request: HttpRequest, sessions: QuerySet[StreamSession]
    ) -> Amounts | None:
        if not request.user.has_perm(LEDGER):
            return None
        sums = list(_sums_of(sessions))
        return Amounts(
            charged=[money(charged, currency) for currency, charged, _ in sums if charged],
            credited=[money(-credited, currency) for currency, _, credited in sums if credited],
        )


def _bill(session_id: UUID) -> Bill | None:
    try:
        return bills.bill_of(session_id)
    except UsageRecord.DoesNotExist:
        return None


def _charges(session_id: UUID) -> QuerySet[LedgerEntry]:
    return LedgerEntry.objects.filter(
        session_id=session_id, kind=LedgerEntry.Kind.CHARGE, amount__gt=0
    ).order_by("pk")


def _sums_of(sessions: QuerySet[StreamSession]) -> Iterable[tuple[str, Decimal, Decimal]]:
    """By currency: what settlements came to, and what people have booked; below 0 what they gave."""
    return (
        LedgerEntry.objects.filter(session_id__in=sessions.order_by().values("pk"))
        .order_by()
        .values_list("currency")
        .annotate(
            charged=Sum("amount", filter=~_BY_HAND, default=Decimal(0)),
            credited=Sum("amount", filter=_BY_HAND, default=Decimal(0)),
        )
        .order_by("currency")
    )


def _shown(bill: Bill, sees_ledger: bool) -> dict[str, Any]:
    """For the template. Without the ledger: the sums, and no line."""
    usage, currency = bill.usage, bill.usage.currency
    shown = {
        "total": money(bill.total, currency),
        "charged": money(bill.charged, currency),
        "credited": money(bill.credited, currency) if bill.credits else "",
        "bill_page": bill_page(usage.pk),
        "tokens": [
            ("Charged", count(usage.billed_tokens)),
            ("Delivered", count(usage.delivered_tokens)),
            ("Generated", count(usage.generated_tokens)),
            ("Discarded", count(usage.discarded_tokens)),
            ("Generated again", count(usage.regenerated_tokens)),
            ("Of the prompt, charged", count(usage.prompt_tokens)),
            ("Of these cached", count(usage.cached_tokens)),
        ],
        "outcomes": [(one, money(one.amount, currency)) for one in bill.outcomes],
    }
    if not sees_ledger:
        return shown
    lines = [
        {
            "entry": link_to(getattr(line, "entry", None), f"{line.settled_at:%Y-%m-%d %H:%M:%S}"),
            "what": f"settlement {line.n}: {line.get_kind_display().lower()}",
            "tokens": f"{line.from_tokens} → {line.to_tokens}",
            "period": line.period.name,
            "amount": money(line.amount, line.currency),
        }
        for line in bill.lines
    ]
    credits = [
        {
            "entry": link_to(credit, f"{credit.created_at:%Y-%m-%d %H:%M:%S}"),
            "what": f"credit by {credit.actor}: {credit.reason}",
            "tokens": "",
            "period": credit.period.name,
            "amount": money(credit.amount, credit.currency),
        }
        for credit in bill.credits
    ]
    return {**shown, "lines": [*lines, *credits]}


def _told(bill: Bill) -> dict[str, Any]:
    """As JSON, for who keeps it: amounts as strings, times in ISO 8601."""
    usage = bill.usage
    return {
        "currency": usage.currency,
        "charged": plain(bill.charged),
        "credited": plain(bill.credited),
        "total": plain(bill.total),
        "tokens": {
            "billed": usage.billed_tokens,
            "delivered": usage.delivered_tokens,
            "generated": usage.generated_tokens,
            "discarded": usage.discarded_tokens,
            "regenerated": usage.regenerated_tokens,
            "prompt": usage.prompt_tokens,
            "prompt_cached": usage.cached_tokens,
        },
        "evidence": usage.evidence,
        "policies": [
            {
                "policy": str(one.policy),
                "tokens": one.tokens,
                "amount": plain(one.amount),
                "in_force": one.in_force,
            }
            for one in bill.outcomes
        ],
        "settlements": [
            {
                "n": line.n,
                "kind": line.kind,
                "from": line.from_tokens,
                "to": line.to_tokens,
                "prompt": line.prompt_tokens,
                "evidence": line.evidence,
                "amount": plain(line.amount),
                "period": line.period.name,
                "settled_at": line.settled_at.isoformat(),
            }
            for line in bill.lines
        ],
        "credits": [
            {
                "amount": plain(credit.amount),
                "reason": credit.reason,
                "period": credit.period.name,
                "booked_at": credit.created_at.isoformat(),
            }
            for credit in bill.credits
        ],
        "waste": [
            {"kind": row.kind, "node": row.node_name, "cause": row.cause, "tokens": row.tokens}
            for row in bill.waste
        ],
    }
