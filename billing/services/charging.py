"""Bringing what a session is charged to what it has come to: one transaction, whoever calls.

Locks, in the order of ``billing.locks``: the usage record, the period, the charges that are
corrected, the quota, and last the audit log; what can be written before that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from billing import locks
from billing.conf import conf
from billing.core import money
from billing.core.policy import INTERRUPTED, Policy, billable
from billing.core.settlement import Line, settle
from billing.models import BillingPeriod, LedgerEntry, PricePlan, Settlement, UsageRecord
from billing.services import audit, ledger, prices, quota, usage_events
from billing.services.figures import Figures, figures_of
from billing.services.interruptions import Interruption, untold
from billing.services.periods import open_period
from billing.services.waste import replace_waste
from streaming.models import OutboxMessage, StreamSession
from streaming.services.incidents import open_incident

NOT_DELIVERED = "not delivered"
"""The reason of credits that nobody had to ask for."""
UNPRICED = "unpriced_usage"
NOTHING = money.Prices(Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True, slots=True)
class Announced:
    """What billing was told of a session: the kinds of the messages, and when the last was written."""

    kinds: frozenset[str] = frozenset()
    at: datetime | None = None


# No savepoint: there is nothing to be kept of a settlement that fails.
@transaction.atomic(savepoint=False)
def bring_up_to_date(session_id: UUID, announced: Announced) -> list[Settlement]:
    """Settle one session as it stands now; the new settlements, none if nothing has changed.

    Safe to be called at any time, again, and twice at once. Raises ``UnknownSession``.
    """
    usage, figures = _locked(session_id)
    plan = usage.plan
    former = list(usage.lines.order_by("n")) if usage.settlements else []
    lines = lines_due(former, figures, plan)
    told = untold(usage, figures)
    settlements: list[Settlement] = []
    charges: list[LedgerEntry | None] = []
    correction = False
    if lines:
        kind = _kind(usage, figures, announced)
        occurred_at = _occurred_at(kind, figures, announced)
        period, correction = open_period(usage.tenant_id, occurred_at)
        for line in lines:
            corrected = None if line.corrects is None else former[line.corrects - 1]
            charge = None if corrected is None else _locked_charge(corrected)
            settlements.append(
                _settlement(
                    usage,
                    figures,
                    line,
                    kind,
                    period,
                    occurred_at,
                    corrected,
                    charge,
                    carried([*former, *settlements]),
                )
            )
            charges.append(charge)
        Settlement.objects.bulk_create(settlements)
    _sum_up(usage, figures, [*former, *settlements])
    replace_waste(usage, figures, plan)
    for settlement in settlements:
        quota.settled(usage, settlement)
        usage_events.announce(settlement, usage)
    if settlements and plan is None:
        _complain(usage)
    links: list[audit.Draft] = []
    for settlement, charge in zip(settlements, charges, strict=True):
        _post(settlement, charge, correction, links)
    links += [_told(usage, interruption) for interruption in told]
    audit.append_many(links)
    return settlements


def policy_of(plan: PricePlan | None) -> Policy:
    """How tokens are counted under a plan, or without one."""
    return Policy.DELIVERED if plan is None else Policy(plan.policy)


def lines_due(former: Sequence[Settlement], figures: Figures, plan: PricePlan | None) -> list[Line]:
    """The lines that are missing after the ``former`` ones; nothing is written."""
    target = billable(policy_of(plan), figures.progress)
    return settle(_as_lines(former), target, figures.prompt, figures.cached)


def price_of(settlement: Settlement) -> Decimal:
    """What its tokens come to at the prices that are frozen in it; below 0 for those taken back."""
    prices = money.Prices(
        settlement.input_per_million,
        settlement.cached_input_per_million,
        settlement.output_per_million,
        settlement.coefficient,
    )
    return money.amount(
        prices,
        prompt=settlement.prompt_tokens,
        cached=settlement.cached_tokens,
        output=settlement.output_tokens,
    )


def carried(settlements: Iterable[Settlement]) -> Decimal:
    """What people had given back of tokens before these were denied, and so was not given back a
    second time. Their credit stands: charged again, the tokens cost that much less."""
    return money.total(
        money.EXACT.subtract(settlement.amount, price_of(settlement)) for settlement in settlements
    )


def owed(price: Decimal, carried: Decimal) -> Decimal:
    """The amount of a charge: its price, less what is carried, as far as it goes."""
    return max(money.EXACT.subtract(price, carried), Decimal(0))


def _locked(session_id: UUID) -> tuple[UsageRecord, Figures]:
    """The session's record, locked and made when it is first needed, and the figures since then:
    nobody settles with older ones after us."""
    usage = locks.lock_usage(session_id)
    if usage is not None:
        return usage, figures_of(session_id)
    figures = figures_of(session_id)
    usage = _first_usage(figures.session)
    if locks.add_usage(usage):
        return usage, figures
    # Somebody was faster; that was waited for, and may have taken a while.
    usage = locks.lock_usage(session_id)
    assert usage is not None
    return usage, figures_of(session_id)


def _first_usage(session: StreamSession) -> UsageRecord:
    plan = prices.plan_for(session.tenant_id, session.model, session.created_at)
    return UsageRecord(
        session_id=session.pk,
        tenant=session.tenant,
        model=session.model,
        cost_centre="" if session.api_key is None else session.api_key.cost_centre,
        plan=plan,
        currency=conf().billing_currency if plan is None else plan.currency,
        began_at=session.created_at,
    )


def _as_lines(settlements: Sequence[Settlement]) -> list[Line]:
    numbers = {settlement.pk: settlement.n for settlement in settlements}
    return [
        Line(
            settlement.n,
            settlement.from_tokens,
            settlement.to_tokens,
            settlement.prompt_tokens,
            settlement.cached_tokens,
            None if settlement.corrects_id is None else numbers[settlement.corrects_id],
        )
        for settlement in settlements
    ]


def _kind(usage: UsageRecord, figures: Figures, announced: Announced) -> Settlement.Kind:
    """Why it is settled now. ``usage`` is as the last settlement left it."""
    if figures.delivered < usage.delivered_tokens:
        return Settlement.Kind.DENIED
    state = figures.session.state
    if figures.ended:
        is_news = usage.state != state
        return Settlement.Kind.ENDED if is_news else Settlement.Kind.DELIVERED
    is_news = state in INTERRUPTED and usage.state != state
    if is_news or OutboxMessage.Kind.SESSION_SUSPENDED in announced.kinds:
        return Settlement.Kind.SUSPENDED
    return Settlement.Kind.DELIVERED


def _occurred_at(kind: Settlement.Kind, figures: Figures, announced: Announced) -> datetime:
    session = figures.session
    known = {
        Settlement.Kind.ENDED: session.ended_at,
        Settlement.Kind.SUSPENDED: session.suspended_at,
    }
    return known.get(kind) or announced.at or timezone.now()


def _locked_charge(settlement: Settlement) -> LedgerEntry:
    entry = LedgerEntry.objects.values_list("pk", flat=True).get(settlement=settlement)
    return locks.lock_charge(entry)


def _settlement(
    usage: UsageRecord,
    figures: Figures,
    line: Line,
    kind: Settlement.Kind,
    period: BillingPeriod,
    occurred_at: datetime,
    corrected: Settlement | None,
    charge: LedgerEntry | None,
    carried: Decimal,
) -> Settlement:
    session, plan = figures.session, usage.plan
    unit = NOTHING
    if plan is not None:
        unit = money.Prices(
            plan.input_per_million,
            plan.cached_input_per_million,
            plan.output_per_million,
            plan.coefficient,
        )
    price = money.amount(unit, prompt=line.prompt, cached=line.cached, output=line.output)
    amount = owed(price, carried) if charge is None else max(price, -_left_of(charge))
    return Settlement(
        usage=usage,
        n=line.n,
        kind=kind,
        tenant_id=usage.tenant_id,
        period=period,
        state=session.state,
        cause=session.cause,
        model=usage.model,
        model_requested=session.model_requested,
        cost_centre=usage.cost_centre,
        api_key_prefix="" if session.api_key is None else session.api_key.prefix,
        from_tokens=line.start,
        to_tokens=line.end,
        output_tokens=line.output,
        prompt_tokens=line.prompt,
        cached_tokens=line.cached,
        log_tokens=figures.log,
        sent_tokens=figures.sent,
        delivered_tokens=figures.delivered,
        compensated_tokens=figures.progress.compensated,
        evidence=figures.evidence,
        generated_tokens=figures.generated,
        discarded_tokens=figures.discarded,
        regenerated_tokens=figures.regenerated,
        policy=policy_of(plan),
        plan=plan,
        input_per_million=unit.input,
        cached_input_per_million=unit.cached_input,
        output_per_million=unit.output,
        coefficient=unit.coefficient,
        currency=usage.currency,
        amount=money.EXACT.plus(amount),  # the database knows no negative zero
        corrects=corrected,
        began_at=usage.began_at,
        occurred_at=occurred_at,
        settled_at=timezone.now(),
    )


def _left_of(charge: LedgerEntry) -> Decimal:
    """What has not been given back yet: a person may have credited some of it before."""
    back = LedgerEntry.objects.filter(charge=charge).aggregate(sum=Sum("amount"))["sum"]
    return max(money.total([charge.amount, back or Decimal(0)]), Decimal(0))


def _sum_up(usage: UsageRecord, figures: Figures, settlements: Sequence[Settlement]) -> None:
    """The record is the sum of its lines, always computed anew, and the figures as they stand."""
    usage.settlements = len(settlements)
    usage.state = figures.session.state
    usage.evidence = figures.evidence
    usage.prompt_tokens = sum(settlement.prompt_tokens for settlement in settlements)
    usage.cached_tokens = sum(settlement.cached_tokens for settlement in settlements)
    usage.billed_tokens = sum(settlement.output_tokens for settlement in settlements)
    usage.amount = money.total(settlement.amount for settlement in settlements)
    usage.log_tokens = figures.log
    usage.sent_tokens = figures.sent
    usage.delivered_tokens = figures.delivered
    usage.compensated_tokens = figures.progress.compensated
    usage.generated_tokens = figures.generated
    usage.discarded_tokens = figures.discarded
    usage.regenerated_tokens = figures.regenerated
    usage.settled_at = settlements[-1].settled_at
    usage.save()


def _post(
    settlement: Settlement,
    charge: LedgerEntry | None,
    correction: bool,
    links: list[audit.Draft],
) -> None:
    """The line in the ledger; what the audit log has to know of both is added to ``links``."""
    is_credit = charge is not None
    ledger.post(
        kind=LedgerEntry.Kind.CREDIT if is_credit else LedgerEntry.Kind.CHARGE,
        period=settlement.period,
        currency=settlement.currency,
        amount=settlement.amount,
        idempotency_key=f"settlement:{settlement.usage_id}:{settlement.n}",
        settlement=settlement,
        charge=charge,
        session_id=settlement.usage_id,
        model=settlement.model,
        cost_centre=settlement.cost_centre,
        reason=NOT_DELIVERED if is_credit else "",
        correction=correction or (charge is not None and charge.period.closed_at is not None),
        links=links,
    )
    links.append(
        audit.draft_of(
            "settlement",
            settlement,
            actor=audit.SYSTEM,
            tenant_id=settlement.tenant_id,
            session_id=settlement.usage_id,
            data={
                "n": settlement.n,
                "kind": str(settlement.kind),
                "state": settlement.state,
                "from": settlement.from_tokens,
                "to": settlement.to_tokens,
                "prompt": settlement.prompt_tokens,
                "cached": settlement.cached_tokens,
                "delivered": settlement.delivered_tokens,
                "evidence": settlement.evidence,
                "generated": settlement.generated_tokens,
                "policy": str(settlement.policy),
                "plan": settlement.plan_id,
                "coefficient": settlement.coefficient,
                "amount": settlement.amount,
                "currency": settlement.currency,
            },
        )
    )


def _told(usage: UsageRecord, interruption: Interruption) -> audit.Draft:
    return audit.draft(
        "session.interrupted",
        actor=audit.SYSTEM,
        subject=f"session:{usage.session_id}",
        tenant_id=usage.tenant_id,
        session_id=usage.session_id,
        data={
            "what": interruption.what,
            "position": interruption.position,
            "node": interruption.node,
            "cause": interruption.cause,
            "grade": interruption.grade,
            "coefficient": Decimal(1) if usage.plan is None else usage.plan.coefficient,
        },
    )


def _complain(usage: UsageRecord) -> None:
    open_incident(
        UNPRICED,
        f"{usage.tenant.name}: {usage.model}",
        session_id=usage.session_id,
        data={"tenant": usage.tenant.name, "model": usage.model},
    )
