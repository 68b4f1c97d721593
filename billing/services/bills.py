"""The whole bill of one session: what was charged for which tokens, by what evidence, and what not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.db.models import Sum

from billing.core import money
from billing.core.money import Prices
from billing.core.policy import Policy
from billing.models import LedgerEntry, Settlement, UsageRecord, Waste
from streaming.models import SessionFence, StreamSession

MOST_LINES = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy bills: tokens of the answer, and the amount with the prompt."""

    policy: Policy
    tokens: int
    amount: Decimal
    in_force: bool


@dataclass(frozen=True, slots=True)
class Bill:
    """``lines``: settlements, oldest first, each with its ``entry``; ``credits``: what people gave
    back; ``fence``: the marks of delivery as they are now; None: they were purged."""

    usage: UsageRecord
    lines: list[Settlement]
    credits: list[LedgerEntry]
    waste: list[Waste]
    outcomes: list[Outcome]
    fence: SessionFence | None

    @property
    def charged(self) -> Decimal:
        return money.total(line.amount for line in self.lines)

    @property
    def credited(self) -> Decimal:
        return money.total(credit.amount for credit in self.credits)

    @property
    def total(self) -> Decimal:
        """What the session comes to."""
        return money.total([self.charged, self.credited])

    @property
    def wasted_cost(self) -> Decimal | None:
        """At our own cost; None: the plan has no cost price."""
        costs = [waste.cost for waste in self.waste if waste.cost is not None]
        return money.total(costs) if costs else None


def bill_of(session_id: UUID) -> Bill:
    """Everything about the money of one session. Six queries, whatever its size.

    Raises ``UsageRecord.DoesNotExist``: it was never settled.
    """
    usage = UsageRecord.objects.select_related("tenant", "plan__list__tenant").get(pk=session_id)
    lines = list(
        usage.lines.select_related("period", "entry", "corrects").order_by("n")[:MOST_LINES]
    )
    credits = LedgerEntry.objects.filter(charge__session_id=session_id, settlement__isnull=True)
    return Bill(
        usage=usage,
        lines=lines,
        credits=list(credits.select_related("period").order_by("pk")[:MOST_LINES]),
        waste=list(usage.waste.order_by("kind", "node_name", "cause")),
        outcomes=_outcomes(usage, lines[-1]) if lines else [],
        fence=SessionFence.objects.filter(pk=session_id).first(),
    )


def left_of(charges: Iterable[LedgerEntry]) -> dict[UUID, Decimal]:
    """What of each charge has not been credited yet."""
    amounts = {charge.pk: charge.amount for charge in charges}
    credited = (
        LedgerEntry.objects.filter(charge_id__in=amounts)
        .order_by()
        .values_list("charge_id")
        .annotate(Sum("amount"))
    )
    for charge_id, amount in credited:
        amounts[charge_id] = money.total([amounts[charge_id], amount])
    return amounts


def _outcomes(usage: UsageRecord, last: Settlement) -> list[Outcome]:
    """Both policies, at the prices that the session has."""
    prices = Prices(
        input=last.input_per_million,
        cached_input=last.cached_input_per_million,
        output=last.output_per_million,
        coefficient=last.coefficient,
    )
    prompt, cached = _prompt(usage)
    return [
        Outcome(
            policy=policy,
            tokens=tokens,
            amount=money.amount(
                prices,
                prompt=prompt if tokens else 0,
                cached=cached if tokens else 0,
                output=tokens,
            ),
            in_force=policy == last.policy,
        )
        for policy, tokens in (
            (Policy.DELIVERED, usage.delivered_tokens),
            (Policy.INTERRUPT_COMPENSATED, usage.compensated_tokens),
        )
    ]


def _prompt(usage: UsageRecord) -> tuple[int, int]:
    """The tokens of the prompt, and those of them that were cached, charged or not."""
    if usage.billed_tokens:
        return usage.prompt_tokens, usage.cached_tokens
    counted = StreamSession.objects.values_list("prompt_tokens", "cached_prompt_tokens")
    prompt, cached = counted.filter(pk=usage.pk).first() or (0, 0)
    return prompt or 0, min(cached or 0, prompt or 0)
