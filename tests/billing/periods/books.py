"""Lines as settlement books them, for tests of what is done with lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from billing.core import money
from billing.models import LedgerEntry, Settlement, UsageRecord, Waste
from billing.services import ledger
from billing.services.periods import open_period
from billing.services.prices import plan_for
from streaming.models import OutboxMessage, StreamSession, Tenant
from tests.billing.rows import Story, add_tenant, ended_session


@transaction.atomic
def settle(story: Story, **columns: Any) -> LedgerEntry:
    """Settle a session once, from what was billed to what is delivered now, and book it.

    ``columns`` are of the settlement; nothing checks them.
    """
    story.session.refresh_from_db()
    story.fence.refresh_from_db()
    session, log = story.session, story.log
    plan = plan_for(session.tenant_id, session.model, session.created_at)
    usage, _ = UsageRecord.objects.get_or_create(
        session_id=session.pk,
        defaults={
            "tenant_id": session.tenant_id, "model": session.model, "plan": plan,
            "began_at": session.created_at, "currency": "EUR" if plan is None else plan.currency,
        },
    )  # fmt: skip
    delivered = min(story.fence.delivered_seq, log)
    first = usage.billed_tokens == 0 and delivered > 0
    prompt = session.prompt_tokens if first and session.prompt_tokens else 0
    cached = session.cached_prompt_tokens if first and session.cached_prompt_tokens else 0
    zero = Decimal(0)
    values = {
        "kind": "suspended" if session.state == "suspended" else "ended",
        "from_tokens": usage.billed_tokens, "to_tokens": delivered,
        "output_tokens": delivered - usage.billed_tokens,
        "prompt_tokens": prompt, "cached_tokens": cached,
        "currency": usage.currency, "coefficient": plan.coefficient if plan else Decimal(1),
        "input_per_million": plan.input_per_million if plan else zero,
        "cached_input_per_million": plan.cached_input_per_million if plan else zero,
        "output_per_million": plan.output_per_million if plan else zero,
        "occurred_at": session.ended_at or session.suspended_at or timezone.now(), **columns,
    }  # fmt: skip
    prices = money.Prices(
        values["input_per_million"], values["cached_input_per_million"],
        values["output_per_million"], values["coefficient"],
    )  # fmt: skip
    amount = money.amount(
        prices, prompt=values["prompt_tokens"], cached=values["cached_tokens"],
        output=values["output_tokens"],
    )  # fmt: skip
    values = {"amount": amount, **values}
    period, correction = open_period(session.tenant_id, values["occurred_at"])
    usage.settlements += 1
    usage.state, usage.evidence = session.state, story.fence.evidence
    usage.prompt_tokens += values["prompt_tokens"]
    usage.cached_tokens += values["cached_tokens"]
    usage.log_tokens, usage.sent_tokens = log, min(story.fence.sent_seq, log)
    usage.delivered_tokens, usage.billed_tokens = delivered, values["to_tokens"]
    usage.compensated_tokens = min(usage.sent_tokens + 1, log)
    usage.generated_tokens = story.generated
    usage.discarded_tokens = story.generated - log
    usage.amount += values["amount"]
    usage.settled_at = timezone.now()
    usage.save()
    Waste.objects.filter(usage=usage).delete()
    for kind, tokens in (
        ("discarded", usage.discarded_tokens), ("undelivered", log - delivered),
    ):  # fmt: skip
        if tokens:
            Waste.objects.create(
                usage=usage, kind=kind, node_name="a", cause="client_gone", tokens=tokens
            )
    settlement = Settlement.objects.create(
        usage=usage, n=usage.settlements, tenant_id=session.tenant_id, period=period,
        state=session.state, cause=session.cause, model=session.model,
        model_requested=session.model_requested, evidence=usage.evidence,
        log_tokens=log, sent_tokens=usage.sent_tokens, delivered_tokens=delivered,
        compensated_tokens=usage.compensated_tokens, generated_tokens=usage.generated_tokens,
        discarded_tokens=usage.discarded_tokens, regenerated_tokens=0, policy="delivered",
        plan=plan, began_at=session.created_at, settled_at=usage.settled_at, **values,
    )  # fmt: skip
    OutboxMessage.objects.filter(session_id=session.pk).update(handled_at=timezone.now())
    return ledger.post(
        kind=LedgerEntry.Kind.CHARGE, period=period, currency=settlement.currency,
        amount=settlement.amount, idempotency_key=f"settlement:{session.pk}:{settlement.n}",
        settlement=settlement, session_id=session.pk, model=session.model, correction=correction,
    )  # fmt: skip


def charged(amount: str, tenant: Tenant | None = None, at: datetime | None = None) -> LedgerEntry:
    """A charge of so much, of a session of its own."""
    story = ended_session(tenant=tenant or add_tenant(), **({} if at is None else {"at": at}))
    return settle(story, amount=Decimal(amount))


@contextmanager
def triggers_disabled(*tables: str) -> Iterator[None]:
    """What a person with enough rights could do: rows of these tables can be changed."""
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def forget(story: Story) -> None:
    """As if the session had never been stored."""
    StreamSession.objects.filter(pk=story.session.pk).delete()
