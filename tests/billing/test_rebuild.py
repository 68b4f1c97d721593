"""Usage computed anew: no difference after a normal run; what is missing is settled."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from billing.models import LedgerEntry, Settlement, UsageRecord, Waste
from billing.services import verification
from streaming.models import OutboxMessage, SessionFence, TokenCheckpoint
from tests.billing.rows import Story, add_plan, add_tenant, ended_session, settle_all

pytestmark = pytest.mark.django_db(transaction=True)


def rebuild(*arguments: str) -> str:
    out = StringIO()
    call_command("rebuild_usage", *arguments, stdout=out)
    return out.getvalue()


def refused(*arguments: str) -> str:
    """What it lists, and then says as it exits with 1."""
    out = StringIO()
    with pytest.raises(CommandError) as raised:
        call_command("rebuild_usage", *arguments, stdout=out)
    return out.getvalue() + str(raised.value)


def lived() -> Story:
    """A session with everything in it, ended."""
    story = Story(prompt=7, cached=3)
    story.attempt("a")
    story.tokens(4)
    story.fail(discarded=2)
    story.attempt("b", grade="exact")
    story.tokens(3)
    story.deliver(5)
    story.suspend()
    story.attempt("a", grade="exact")
    story.tokens(2)
    story.deliver(9)
    story.end()
    return story


def forget() -> None:
    """The messages are lost: somebody has emptied the table."""
    OutboxMessage.objects.all().delete()


def test_after_a_normal_run_there_is_no_difference():
    add_plan()
    lived()
    abandoned = ended_session(6, delivered=2, state="abandoned", cause="client_gone")
    assert "3 of them" not in rebuild("--dry-run")
    settle_all()
    abandoned.purge()
    Story().attempt()  # it lives
    said = rebuild("--dry-run")
    assert said == "No difference: 2 sessions compared, 0 of them wait to be settled.\n"
    assert rebuild() == "0 sessions settled, no difference remains.\n"


def test_what_waits_is_no_difference_and_is_settled():
    lived()
    assert "1 sessions compared, 1 of them wait" in rebuild("--dry-run")
    assert rebuild().endswith("1 sessions settled, no difference remains.\n")
    assert Settlement.objects.count() == 1
    assert not OutboxMessage.objects.filter(handled_at=None).exists()


def test_what_was_never_settled_is():
    add_plan(cost="1")
    story = lived()
    forget()
    said = refused("--dry-run")
    assert str(story.session.pk) in said
    assert "billed tokens 0, should be 9" in said
    assert "prompt tokens 0, should be 7" in said
    assert not Settlement.objects.exists()
    assert "1 sessions settled, no difference remains" in rebuild()
    record = UsageRecord.objects.get()
    assert (record.billed_tokens, record.prompt_tokens, record.settlements) == (9, 7, 1)
    assert "No difference" in rebuild("--dry-run")


def test_a_difference_becomes_one_more_settlement():
    add_plan()
    story = lived()
    settle_all()
    (before,) = Settlement.objects.values()
    SessionFence.objects.update(acked_seq=6)
    forget()
    assert "billed tokens 9, should be 6" in refused("--dry-run")
    rebuild()
    assert Settlement.objects.values().get(n=1) == before
    credit = LedgerEntry.objects.get(kind="credit")
    assert credit.amount == Decimal("-0.000012")
    assert UsageRecord.objects.get(pk=story.session.pk).billed_tokens == 6
    assert "No difference" in rebuild("--dry-run")
    assert verification.verify().ok


def test_figures_of_a_record_are_put_right():
    lived()
    settle_all()
    UsageRecord.objects.update(billed_tokens=3, generated_tokens=1, amount=7)
    Waste.objects.all().delete()
    said = refused("--dry-run")
    for name in ("sum of billed tokens 3, should be 9", "generated tokens 1, should be 11",
                 "sum of amounts 7, should be 0", "wasted tokens 0, should be 2"):  # fmt: skip
        assert name in said
    rebuild()
    assert "No difference" in rebuild("--dry-run")
    assert Settlement.objects.count() == 1


def test_a_log_that_lacks_tokens_stays_different():
    lived()
    settle_all()
    TokenCheckpoint.objects.filter(first_seq=1).delete()
    assert "tokens in the log 9, should be 5" in refused("--dry-run")
    assert "1 of them still differ" in refused()


def test_of_one_tenant_or_of_one_month():
    for name, month in (("acme", 1), ("globex", 2)):
        tenant = add_tenant(name)
        ended_session(
            3, tenant=tenant, at=datetime(2026, month, 31 if month == 1 else 1, tzinfo=UTC)
        )
    forget()
    assert "1 differ: 1 sessions" in refused("--dry-run", "--tenant", "acme")
    assert "1 differ: 1 sessions" in refused("--dry-run", "--period", "2026-02")
    assert "No difference: 0 sessions" in rebuild(
        "--dry-run", "--tenant", "acme", "--period", "2026-02"
    )
    tenant.billing.time_zone = "America/New_York"  # where it was still January
    tenant.billing.save()
    assert "2 differ" in refused("--dry-run", "--period", "2026-01")
    rebuild("--tenant", "acme")
    assert "1 differ" in refused("--dry-run")


def test_what_nobody_can_mean():
    assert "no tenant 'nobody'" in refused("--tenant", "nobody")
    assert "no month" in refused("--dry-run", "--tenant", add_tenant().name, "--period", "2026-13")
