"""What was generated for a session and not delivered: by node and cause, in tokens and in money."""

from __future__ import annotations

from billing.core import money
from billing.core.waste import undelivered
from billing.models import PricePlan, UsageRecord, Waste
from billing.services.figures import Figures, runs_of

UNKNOWN_NODE = "unknown"
"""Of an attempt that its gateway had no time to write down."""

Key = tuple[str, str, str]
"""kind, node, cause"""


def replace_waste(usage: UsageRecord, figures: Figures, plan: PricePlan | None) -> None:
    """Store what has gone to waste so far, in place of what had before.

    What is in the log and not delivered counts once the session has ended: until then a reader may
    still come for it.
    """
    wanted = wasted(figures)
    stored = {
        (row.kind, row.node_name, row.cause): row.tokens
        for row in Waste.objects.filter(usage=usage)
    }
    if stored == wanted:
        return
    if stored:
        Waste.objects.filter(usage=usage).delete()
    price = None if plan is None else plan.cost_per_million
    Waste.objects.bulk_create(
        Waste(
            usage=usage,
            kind=kind,
            node_name=node,
            cause=cause,
            tokens=tokens,
            cost=None if price is None else money.cost(price, tokens),
            currency="" if plan is None else plan.currency,
        )
        for (kind, node, cause), tokens in wanted.items()
    )


def wasted(figures: Figures) -> dict[Key, int]:
    """The tokens that were wasted, by kind, node and cause."""
    result: dict[Key, int] = {}

    def add(kind: Waste.Kind, node: str, cause: str, tokens: int) -> None:
        if tokens:
            key = (str(kind), node, cause)
            result[key] = result.get(key, 0) + tokens

    for attempt in figures.attempts:
        cause = attempt.cause or attempt.end_reason
        add(Waste.Kind.DISCARDED, attempt.node_name, cause, attempt.discarded_tokens)
        add(Waste.Kind.REGENERATED, attempt.node_name, cause, attempt.repeated_tokens)
    if figures.ended and figures.delivered < figures.log:
        nodes = {attempt.number: attempt.node_name for attempt in figures.attempts}
        cause = figures.session.cause or Waste.Kind.UNDELIVERED
        missing = undelivered(runs_of(figures), figures.delivered, figures.log)
        for number, tokens in missing.items():
            node = UNKNOWN_NODE if number is None else nodes.get(number, UNKNOWN_NODE)
            add(Waste.Kind.UNDELIVERED, node, str(cause), tokens)
    return result
