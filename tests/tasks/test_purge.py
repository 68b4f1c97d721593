"""Content is forgotten when its time is over; what a bill rests on stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from streaming.core.ids import uuid7
from streaming.models import (
    Attempt,
    OutboxMessage,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)
from streaming.services import purge
from streaming.services.purge import purge_expired_content
from streaming.services.refused import Refused
from tests.tasks.rows import add_attempt, add_session, run_together

database = pytest.mark.django_db(transaction=True)


def ended(days_ago: float, **columns: Any) -> StreamSession:
    at = timezone.now() - timedelta(days=days_ago)
    columns = {"state": "completed", "completion_tokens": 3, "prompt_tokens": 5, **columns}
    session = add_session(
        None, 3, ended_at=at, created_at=at, prompt_token_ids=b"\1\0\0\0" * 5,
        evidence={"cause": "engine_crash", "said": "a piece of the answer"}, **columns,
    )  # fmt: skip
    add_attempt(session, ended_at=at, end_detail="malformed: a piece of the answer", last_seq=3)
    return session


@database
def test_the_content_goes_and_what_a_bill_rests_on_stays():
    session = ended(31)
    digest = bytes(TokenCheckpoint.objects.get().digest)
    assert purge_expired_content() == {"purged": 1, "more": False}
    session.refresh_from_db()
    assert session.purged_at is not None
    assert bytes(session.request) == b""
    assert session.prompt_token_ids is None
    assert session.evidence == {"cause": "engine_crash"}
    assert not TokenCheckpoint.objects.exists()
    attempt = Attempt.objects.get()
    assert (attempt.end_detail, attempt.last_seq) == ("", 3)
    assert bytes(session.log_digest) == digest
    assert (session.prompt_tokens, session.completion_tokens) == (5, 3)
    assert SessionFence.objects.get().durable_seq == 3
    assert purge_expired_content()["purged"] == 0


@database
@pytest.mark.parametrize(
    ("days", "ended_days_ago", "purged"),
    [(None, 29, 0), (7, 8, 1), (7, 6, 0), (90, 31, 0), (90, 91, 1), (0, 1000, 0)],
)
def test_a_tenant_may_have_its_own_time(days, ended_days_ago, purged):
    ended(ended_days_ago, tenant=Tenant.objects.create(name="own", content_days=days))
    assert purge_expired_content()["purged"] == purged


@database
def test_what_has_not_ended_is_kept():
    long_ago = timezone.now() - timedelta(days=400)
    add_session(None, 3, created_at=long_ago)
    add_session(None, 3, created_at=long_ago, state="suspended")
    assert purge_expired_content()["purged"] == 0
    assert TokenCheckpoint.objects.count() == 2


@database
def test_in_batches_and_twice_at_once(monkeypatch):
    for _ in range(25):
        ended(40)
    monkeypatch.setattr(purge, "BATCH", 4)
    results = run_together(purge_expired_content, 2)
    assert sum(result["purged"] for result in results) == 25
    assert StreamSession.objects.filter(purged_at__isnull=False).count() == 25


@database
def test_an_odd_row_keeps_nobodys_content():
    odd, other = ended(40), ended(40)
    StreamSession.objects.filter(pk=odd.pk).update(evidence="text")
    Attempt.objects.filter(session=other.pk).update(evidence=[1, 2])
    assert purge_expired_content()["purged"] == 2
    assert not StreamSession.objects.filter(purged_at=None).exists()


@database
def test_what_takes_longer_goes_on_in_another_run(monkeypatch):
    for _ in range(3):
        ended(40)
    monkeypatch.setattr(purge, "BATCH", 1)
    monkeypatch.setattr(purge, "RUN_SECONDS", 0.0001)
    assert purge_expired_content() == {"purged": 1, "more": True}


@database
def test_what_only_the_log_says_of_attempts_is_kept():
    """Of an attempt whose gateway died nobody else has written down what it produced."""
    session = ended(31)
    Attempt.objects.update(last_seq=None)
    digest = bytes(TokenCheckpoint.objects.get().digest)
    purge_expired_content()
    attempt = Attempt.objects.get(session=session)
    assert (attempt.first_seq, attempt.last_seq) == (1, 3)
    assert bytes(attempt.log_digest) == digest


@database
def test_one_session_by_hand():
    session = ended(1)
    purge.purge_session(session.pk, by="user:alice")
    session.refresh_from_db()
    assert session.purged_at is not None
    assert not TokenCheckpoint.objects.exists()
    said = OutboxMessage.objects.get(kind="audit")
    assert (said.session_id, said.data["action"]) == (session.pk, "session.purge")
    assert said.data["actor"] == "user:alice"
    with pytest.raises(Refused, match="before"):
        purge.purge_session(session.pk, by="user:alice")


@database
def test_no_session_that_lives_is_purged_by_hand():
    session = add_session(None, 3, state="suspended")
    with pytest.raises(Refused, match="stop it first"):
        purge.purge_session(session.pk, by="user:alice")
    with pytest.raises(Refused, match="no such"):
        purge.purge_session(uuid7(), by="user:alice")
    assert TokenCheckpoint.objects.exists()
    assert not OutboxMessage.objects.exists()


@database
def test_a_reader_that_saw_the_end_has_time_to_read_it():
    session = ended(40)
    StreamSession.objects.filter(pk=session.pk).update(ended_at=timezone.now())
    assert purge_expired_content()["purged"] == 0
