"""Settling sessions on the real database: what is charged, when, and that it is charged once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from django.utils import timezone

from billing.core.policy import Policy
from billing.errors import UnknownSession
from billing.models import (
    AuditEntry,
    BillingPeriod,
    LedgerEntry,
    PricePlan,
    Settlement,
    UsageRecord,
    Waste,
)
from billing.services import audit, ledger, verification
from billing.services.periods import period_at
from billing.services.settlement import settle_due, settle_overdue, settle_session
from billing.tasks import settle_sessions
from gateway_project.celery import app
from streaming.metrics.plain import REGISTRY, fold
from streaming.models import Incident, OutboxMessage, SessionFence, TaskRun
from streaming.services.audit import announce
from tests.billing.rows import (
    Story,
    add_key,
    add_plan,
    add_tenant,
    ended_session,
    settle_all,
)
from tests.tasks.rows import run_together

pytestmark = pytest.mark.django_db
real_transactions = pytest.mark.django_db(transaction=True)

LONG_OVER = timedelta(minutes=1)


def lines(story: Story) -> list[Settlement]:
    return list(Settlement.objects.filter(usage=story.session.pk).order_by("n"))


def usage(story: Story) -> UsageRecord:
    return UsageRecord.objects.get(pk=story.session.pk)


def waiting() -> int:
    return OutboxMessage.objects.filter(handled_at=None).count()


def waste(story: Story) -> dict[tuple[str, str, str], int]:
    rows = Waste.objects.filter(usage=story.session.pk)
    return {(row.kind, row.node_name, row.cause): row.tokens for row in rows}


def interruptions(story: Story) -> list[dict[str, Any]]:
    found = AuditEntry.objects.filter(action="session.interrupted", session_id=story.session.pk)
    return [orjson.loads(entry.data) for entry in found.order_by("seq")]


def checked() -> None:
    """The ledger has exactly one entry a settlement, of its amount; the audit log witnesses both."""
    for line in Settlement.objects.all():
        entry = LedgerEntry.objects.get(settlement=line)
        assert (entry.amount, entry.currency) == (line.amount, line.currency)
        assert entry.idempotency_key == f"settlement:{line.usage_id}:{line.n}"
    verdict = verification.verify()
    assert verdict.ok, verdict.broken


def test_a_whole_answer_is_settled_at_once():
    tenant = add_tenant()
    key = add_key(tenant, cost_centre="R&D")
    plan = add_plan(input="1", cached="0.25", output="4", coefficient=Decimal("1.5"))
    story = ended_session(10, tenant=tenant, api_key=key, prompt=20, cached=8)
    assert settle_due() == {
        "sessions": 1, "settlements": 1, "failed": 0, "audited": 0, "more": 0,
    }  # fmt: skip
    (line,) = lines(story)
    assert (line.n, line.kind, line.state) == (1, "ended", "completed")
    assert (line.from_tokens, line.to_tokens, line.output_tokens) == (0, 10, 10)
    assert (line.prompt_tokens, line.cached_tokens) == (20, 8)
    assert (line.log_tokens, line.sent_tokens, line.delivered_tokens) == (10, 10, 10)
    assert (line.evidence, line.generated_tokens, line.policy) == ("ack", 10, "delivered")
    assert (line.plan, line.output_per_million, line.coefficient) == (plan, 4, Decimal("1.5"))
    # (12 × 1 + 8 × 0.25 + 10 × 4) × 1.5 / 1,000,000
    assert (line.amount, line.currency) == (Decimal("0.000081"), "EUR")
    assert (line.cost_centre, line.api_key_prefix) == ("R&D", key.prefix)
    assert line.occurred_at == story.session.ended_at
    assert line.period == period_at(tenant.pk, story.session.ended_at)
    record = usage(story)
    assert (record.settlements, record.billed_tokens, record.amount) == (1, 10, line.amount)
    assert (record.prompt_tokens, record.cached_tokens) == (20, 8)
    entry = LedgerEntry.objects.get()
    assert (entry.kind, entry.model, entry.cost_centre) == ("charge", "m", "R&D")
    assert waiting() == 0
    assert settle_all()["sessions"] == 0
    checked()


def test_while_evidence_may_come_in_an_end_waits():
    add_plan()
    story = ended_session(10, delivered=4, at=timezone.now() + LONG_OVER)  # it is over just now
    assert settle_all()["sessions"] == 0
    story.deliver(10, announce=True)
    assert settle_all()["settlements"] == 1
    assert lines(story)[0].to_tokens == 10
    late = ended_session(10, delivered=4, ago=timedelta(seconds=2.1))
    assert settle_all()["settlements"] == 1
    assert lines(late)[0].to_tokens == 4


def test_nobody_waits_for_the_reader_of_an_abandoned_session():
    story = ended_session(10, delivered=4, state="abandoned")
    settle_all()
    assert lines(story)[0].to_tokens == 4


def test_a_session_is_settled_when_it_is_suspended_and_again_when_it_ends():
    add_plan()
    story = Story(prompt=12)
    story.attempt("a")
    story.tokens(8)
    story.deliver(5)
    story.suspend()
    settle_all()
    story.attempt("b", grade="exact", kind="resumption")
    story.tokens(4)
    story.deliver(12)
    story.end()
    settle_all()
    first, second = lines(story)
    assert (first.kind, first.to_tokens, first.prompt_tokens) == ("suspended", 5, 12)
    assert first.occurred_at == story.session.suspended_at
    assert (second.kind, second.from_tokens, second.to_tokens) == ("ended", 5, 12)
    assert second.prompt_tokens == 0
    assert usage(story).billed_tokens == 12
    checked()


def test_a_suspension_that_is_over_again_is_settled_as_it_stands():
    story = Story()
    story.attempt("a")
    story.tokens(8)
    story.deliver(5)
    story.suspend()
    story.attempt("b", grade="exact")
    story.tokens(2)
    story.deliver(7)
    settle_all()
    (line,) = lines(story)
    assert (line.kind, line.state, line.to_tokens) == ("suspended", "streaming", 7)


def test_a_session_that_is_abandoned_adds_no_line_but_its_waste():
    add_plan(cost="2")
    story = Story()
    story.attempt("a")
    story.tokens(8)
    story.deliver(5)
    story.suspend()
    settle_all()
    assert waste(story) == {}
    story.end("abandoned", "client_gone")
    settle_all()
    assert len(lines(story)) == 1
    assert usage(story).state == "abandoned"
    assert waste(story) == {("undelivered", "a", "client_gone"): 3}
    assert Waste.objects.get().cost == Decimal("0.000006")
    assert [told["what"] for told in interruptions(story)] == ["suspended", "abandoned"]


def test_evidence_that_comes_later_is_charged_then():
    add_plan()
    story = ended_session(10, delivered=4, ago=LONG_OVER)
    settle_all()
    story.at = timezone.now()
    story.deliver(9, by="cursor", announce=True)
    settle_all()
    line = lines(story)[1]
    assert (line.kind, line.from_tokens, line.to_tokens) == ("delivered", 4, 9)
    assert (line.evidence, line.occurred_at) == ("cursor", story.at)
    checked()


def test_a_cursor_below_the_mark_gives_back():
    add_plan(input="1", output="4")
    story = Story(prompt=10)
    story.attempt("a")
    story.tokens(6)
    story.deliver(4, by="socket")
    story.suspend()
    settle_all()
    story.deliver(6, by="socket", announce=True)
    settle_all()
    story.deny(3, announce=True)
    settle_all()
    first, second, back, more = lines(story)
    assert (back.kind, back.output_tokens, back.corrects) == ("denied", -2, second)
    assert (more.kind, more.output_tokens, more.corrects) == ("denied", -1, first)
    assert usage(story).billed_tokens == 3
    assert usage(story).amount == Decimal("0.000022")
    credit = LedgerEntry.objects.get(settlement=more)
    assert (credit.kind, credit.amount) == ("credit", Decimal("-0.000004"))
    assert credit.charge == LedgerEntry.objects.get(settlement=first)
    assert credit.reason
    checked()


def test_the_prompt_is_given_back_with_the_last_token():
    add_plan()
    story = Story(prompt=10, cached=4)
    story.attempt("a")
    story.tokens(6)
    story.deliver(4, by="socket")
    story.suspend()
    settle_all()
    SessionFence.objects.filter(pk=story.session.pk).update(taken_seq=0)
    story.announce("session_delivered")
    settle_all()
    record = usage(story)
    assert (record.billed_tokens, record.prompt_tokens, record.cached_tokens) == (0, 0, 0)
    assert record.amount == 0
    assert (lines(story)[1].prompt_tokens, lines(story)[1].cached_tokens) == (-10, -4)
    story.deliver(6)
    story.end()
    settle_all()
    assert usage(story).prompt_tokens == 10
    checked()


def test_what_a_person_has_credited_is_not_credited_again():
    add_plan(input="0", output="1000000")
    story = Story()
    story.attempt("a")
    story.tokens(6)
    story.deliver(6, by="socket")
    story.suspend()
    settle_all()
    charge = LedgerEntry.objects.get()
    ledger.post(
        kind=LedgerEntry.Kind.CREDIT, period=charge.period, currency="EUR",
        amount=Decimal("-4.5"), charge=charge, reason="a complaint", idempotency_key="by hand",
    )  # fmt: skip
    story.deny(2, announce=True)
    settle_all()
    line = lines(story)[1]
    assert (line.output_tokens, line.amount) == (-4, Decimal("-1.5"))
    assert usage(story).amount == Decimal("4.5")
    SessionFence.objects.filter(pk=story.session.pk).update(taken_seq=0, cursor_seq=0)
    story.announce("session_delivered")
    settle_all()
    assert lines(story)[2].amount == 0
    checked()


@pytest.mark.parametrize(
    ("state", "billed"), [("cancelled", 6), ("failed", 6), ("stopped", 3), ("completed", 3)]
)
def test_interruptions_are_compensated_where_a_contract_says_so(state, billed):
    add_plan(policy=Policy.INTERRUPT_COMPENSATED)
    story = Story(at=timezone.now() - LONG_OVER)
    story.attempt("a")
    story.tokens(8)
    story.deliver(3)
    story.send(5)
    story.end(state)
    settle_all()
    (line,) = lines(story)
    assert (line.to_tokens, line.delivered_tokens, line.compensated_tokens) == (billed, 3, 6)
    assert line.policy == "interrupt_compensated"


def test_without_a_price_it_costs_nothing_and_somebody_is_told():
    story = ended_session(10)
    settle_all()
    (line,) = lines(story)
    assert (line.plan, line.amount, line.currency) == (None, 0, "EUR")
    assert line.output_tokens == 10
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("unpriced_usage", "acme: m")
    checked()


def test_a_price_is_that_of_the_sessions_beginning():
    now = timezone.now()
    add_plan(output="4", effective_to=now - timedelta(minutes=5))
    story = Story(at=now - timedelta(minutes=10))
    story.attempt("a")
    story.tokens(5)
    story.deliver(5)
    story.suspend()
    settle_all()
    PricePlan.objects.create(
        list=PricePlan.objects.get().list, currency="USD", effective_from=now - timedelta(minutes=5),
        input_per_million=9, cached_input_per_million=9, output_per_million=9, created_by="user:pat",
    )  # fmt: skip
    story.attempt("a")
    story.tokens(5)
    story.deliver(10)
    story.end()
    settle_all()
    assert {(line.output_per_million, line.currency) for line in lines(story)} == {(4, "EUR")}


def test_waste_is_told_by_node_and_cause():
    add_plan(cost="1.5")
    story = Story(at=timezone.now() - LONG_OVER)
    story.attempt("a")
    story.tokens(6)
    story.fail("engine_oom", discarded=2)
    story.attempt("b", grade="regenerated")
    story.tokens(3)
    story.end_attempt("connection_reset", cause="network_reset", repeated=6)
    story.attempt("c", grade="exact")
    story.tokens(4)
    story.deliver(7)
    story.end("failed", "timeout")
    settle_all()
    assert waste(story) == {
        ("discarded", "a", "engine_oom"): 2,
        ("regenerated", "b", "network_reset"): 6,
        ("undelivered", "b", "timeout"): 2,
        ("undelivered", "c", "timeout"): 4,
    }
    record = usage(story)
    assert (record.generated_tokens, record.delivered_tokens) == (21, 7)
    assert (record.discarded_tokens, record.regenerated_tokens) == (2, 6)
    assert sum(waste(story).values()) + 7 == 21 == story.generated
    oom = Waste.objects.get(node_name="a")
    assert (oom.cost, oom.currency) == (Decimal("0.000003"), "EUR")
    assert interruptions(story) == [
        {"what": "attempt 1", "position": 6, "node": "a", "cause": "engine_oom",
         "grade": "regenerated", "coefficient": "1"},
        {"what": "attempt 2", "position": 9, "node": "b", "cause": "network_reset",
         "grade": "exact", "coefficient": "1"},
        {"what": "failed", "position": 13, "node": "c", "cause": "timeout",
         "grade": "", "coefficient": "1"},
    ]  # fmt: skip


def test_each_interruption_is_told_once():
    story = Story()
    for _ in range(2):
        story.attempt("a")
        story.tokens(3)
        story.fail()
        story.attempt("b", grade="exact")
        story.suspend()
        settle_all()
        story.announce("session_suspended")
        settle_all()
    assert [(told["what"], told["position"]) for told in interruptions(story)] == [
        ("attempt 1", 3),
        ("suspended", 3),
        ("attempt 3", 6),
        ("suspended", 6),
    ]


def test_an_attempt_that_its_gateway_could_not_note_down_is_known_from_the_log():
    story = Story(at=timezone.now() - LONG_OVER)
    story.attempt("a")
    story.tokens(3)
    story.number = 2  # its tokens became durable, and then the gateway died
    story.tokens(2)
    story.crash()
    story.number = 0
    story.end("failed", "gateway_crash")
    settle_all()
    assert waste(story) == {
        ("undelivered", "a", "gateway_crash"): 3,
        ("undelivered", "unknown", "gateway_crash"): 2,
    }
    assert [(told["what"], told["position"]) for told in interruptions(story)] == [
        ("attempt 1", 3),
        ("failed", 5),
    ]


def test_a_purged_session_can_still_be_settled():
    add_plan()
    story = Story(at=timezone.now() - LONG_OVER)
    story.attempt("a")
    story.tokens(6)
    story.fail()
    story.attempt("b")
    story.tokens(4)
    story.deliver(5)
    story.end("stopped", "client_stop")
    story.purge()
    settle_all()
    assert lines(story)[0].to_tokens == 5
    assert waste(story) == {
        ("undelivered", "a", "client_stop"): 1,
        ("undelivered", "b", "client_stop"): 4,
    }


def test_what_belongs_to_a_closed_period_goes_into_the_current_one():
    add_plan()
    tenant = add_tenant()
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    story = ended_session(10, delivered=6, at=at)
    settle_all()
    january = lines(story)[0].period
    assert january.name == "2026-01"
    BillingPeriod.objects.update(closed_at=timezone.now())
    for period in BillingPeriod.objects.all():
        link = audit.draft_of("period.closed", period, actor="user:pat", tenant_id=None)
        audit.append_many([link])
    SessionFence.objects.filter(pk=story.session.pk).update(acked_seq=2)
    story.at = timezone.now()
    story.announce("session_delivered")
    settle_all()
    credit = LedgerEntry.objects.get(kind="credit")
    assert credit.period == period_at(tenant.pk, story.at)
    assert credit.correction
    late = ended_session(3, at=at)
    settle_all()
    charge = LedgerEntry.objects.get(session_id=late.session.pk)
    assert charge.period == credit.period
    assert charge.correction
    checked()


@real_transactions
def test_a_session_that_cannot_be_settled_stands_in_nobodys_way():
    broken, fine = ended_session(3), ended_session(4)
    SessionFence.objects.filter(pk=broken.session.pk).delete()
    result = settle_all()
    assert (result["sessions"], result["failed"]) == (1, 1)
    assert lines(fine)
    incident = Incident.objects.get(kind="settlement_failed")
    assert incident.session_id == broken.session.pk
    message = OutboxMessage.objects.get(handled_at=None)
    assert message.data["tries"] == 1
    retry(message, timezone.now() + LONG_OVER)
    assert settle_all()["failed"] == 0  # its next try has its time
    retry(message, timezone.now())
    assert settle_all()["failed"] == 1
    SessionFence.objects.create(
        session=broken.session, epoch=1, durable_seq=4, sent_seq=3, acked_seq=3
    )
    message.refresh_from_db()
    assert message.data["tries"] == 2
    retry(message, timezone.now())
    assert settle_all()["sessions"] == 1
    assert lines(broken)[0].to_tokens == 3
    incident.refresh_from_db()
    assert incident.closed_at is not None


def retry(message: OutboxMessage, at: datetime) -> None:
    message.data["retry_at"] = at.isoformat()
    message.save()


def test_what_is_not_there_cannot_be_settled():
    story = Story()
    story.session.delete()
    with pytest.raises(UnknownSession):
        settle_session(story.session.pk)


def test_deeds_that_were_announced_come_into_the_audit_log():
    announce("node.drain", actor="user:ada", subject="node:a")
    assert settle_all()["audited"] == 1
    assert AuditEntry.objects.get().action == "node.drain"
    assert waiting() == 0


def test_a_session_can_be_settled_by_name():
    add_plan()
    story = ended_session(10, delivered=4)
    (line,) = settle_session(story.session.pk)
    assert line.to_tokens == 4
    assert waiting() == 0
    assert settle_session(story.session.pk) == []


@real_transactions
def test_in_several_runs():
    for _ in range(5):
        ended_session(3)
    results = [settle_due(2)]
    while results[-1]["more"]:
        results.append(settle_due(2))
    assert all(result["sessions"] <= 2 for result in results)
    assert sum(result["sessions"] for result in results) == 5
    assert waiting() == 0


@real_transactions
def test_many_at_once_settle_each_session_once():
    add_plan()
    stories = [ended_session(3 + number % 3) for number in range(12)]
    for story in stories[::2]:
        story.announce("session_ended")
    settled = sum(run_together(settle_overdue)) + settle_all()["sessions"]
    assert settled == Settlement.objects.count() == LedgerEntry.objects.count() == 12
    assert waiting() == 0
    checked()


@real_transactions
def test_one_session_settled_by_many_at_once():
    add_plan()
    story = ended_session(9)
    results = run_together(lambda: settle_session(story.session.pk), 4)
    assert sum(len(result) for result in results) == 1
    checked()


def test_the_task_is_noted_and_says_how_long_settlement_took():
    def count() -> float:
        fold()
        name, labels = "unbroken_settlement_seconds_count", {"kind": "ended"}
        return REGISTRY.get_sample_value(name, labels) or 0.0

    before = count()
    ended_session(3, ago=timedelta(seconds=40))
    assert settle_sessions()["settlements"] == 1
    assert TaskRun.objects.get(name="settle_sessions").result["settlements"] == 1
    assert count() == before + 1
    assert app.conf.beat_schedule["settle_sessions"]["schedule"] == 1.0
