"""Who asked is forgotten when its time is over, and never while a bill may be argued about."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from billing.models import BillingPeriod, Settlement
from billing.services.closing import close_period
from billing.services.reconciliation import reconcile
from billing.services.retention import may_reduce
from billing.services.verification import verify
from streaming.checks import check_retention
from streaming.conf import conf
from streaming.models import (
    Attempt,
    IdempotencyKey,
    Incident,
    SessionEvent,
    SessionReview,
    StreamSession,
    Tenant,
)
from streaming.ports import ports
from streaming.services import reduction
from streaming.services.purge import purge_expired_content, watch_overdue
from streaming.services.reduction import reduce_expired_metadata
from tests.billing.rows import Story, ended_session, settle_all
from tests.retention.days import long_ago
from tests.tasks.rows import add_attempt, add_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def nobody_bills(monkeypatch):
    monkeypatch.setattr(ports, "may_reduce", set)


def known(days_ago: int = 500, **columns: Any) -> StreamSession:
    """A session of which everything personal is stored."""
    session = add_session(
        None, 3, end_user="visitor-1", request_id="req-1", evidence={"because": "it crashed"},
        outcome="recovered", interrupted_cause="engine_crash", **columns,
    )  # fmt: skip
    long_ago(session, days=days_ago)
    add_attempt(
        session, ended_at=timezone.now(), end_detail="said", seam_note="note", last_seq=3,
        cause="engine_crash", evidence={"said": "a piece"},
    )  # fmt: skip
    SessionEvent.objects.create(
        session=session, at=timezone.now(), kind="suspended", seq=3,
        data={"cause": "reader_gone", "transport": "sse"},
    )  # fmt: skip
    SessionReview.objects.create(session=session, note="Ms X called", ticket="T-1")
    IdempotencyKey.objects.create(
        tenant=session.tenant, end_user="visitor-1", key=f"key-{session.pk}", body_digest=b"x",
        session_id=session.pk,
    )  # fmt: skip
    return session


@pytest.mark.usefixtures("nobody_bills")
def test_what_is_personal_goes_and_the_figures_stay():
    session = known()
    assert reduce_expired_metadata() == {"reduced": 0, "more": False}  # content goes first
    purge_expired_content()
    assert reduce_expired_metadata() == {"reduced": 1, "more": False}
    session.refresh_from_db()
    assert (session.end_user, session.request_id, session.evidence) == ("", "", {})
    assert session.reduced_at is not None
    assert (session.outcome, session.interrupted_cause) == ("recovered", "engine_crash")
    assert (session.completion_tokens, session.log_digest is not None) == (3, True)
    attempt = Attempt.objects.get()
    assert (attempt.end_detail, attempt.seam_note, attempt.evidence) == ("", "", {})
    assert (attempt.first_seq, attempt.last_seq, attempt.cause) == (1, 3, "engine_crash")
    assert SessionEvent.objects.get().data == {"cause": "reader_gone"}
    review = SessionReview.objects.get()
    assert (review.note, review.ticket) == ("", "")
    assert not IdempotencyKey.objects.exists()
    assert reduce_expired_metadata() == {"reduced": 0, "more": False}


@pytest.mark.usefixtures("nobody_bills")
@pytest.mark.parametrize(
    ("days", "ago", "reduced"), [(None, 399, 0), (None, 402, 1), (60, 62, 1), (0, 5000, 0)]
)
def test_a_tenant_may_have_its_own_time(days, ago, reduced):
    known(ago, tenant=Tenant.objects.create(name="own", metadata_days=days))
    purge_expired_content()
    assert reduce_expired_metadata()["reduced"] == reduced


def test_what_may_not_be_reduced_holds_up_nobody_else(monkeypatch):
    first, second, third = (known() for _ in range(3))
    other = known(tenant=Tenant.objects.create(name="other"))
    purge_expired_content()
    monkeypatch.setattr(reduction, "BATCH", 2)
    monkeypatch.setattr(ports, "may_reduce", lambda ids: {*ids} - {first.pk})
    assert reduce_expired_metadata()["reduced"] == 3
    reduced = StreamSession.objects.filter(reduced_at__isnull=False)
    assert {session.pk for session in reduced} == {second.pk, third.pk, other.pk}


@pytest.mark.usefixtures("nobody_bills")
def test_what_takes_longer_goes_on_in_another_run(monkeypatch):
    for _ in range(3):
        known()
    purge_expired_content()
    monkeypatch.setattr(reduction, "BATCH", 1)
    monkeypatch.setattr(reduction, "RUN_SECONDS", 0.0)
    assert reduce_expired_metadata() == {"reduced": 1, "more": True}


def test_never_before_the_month_is_closed():
    story = ended_session(10, ago=timedelta(days=500))
    assert may_reduce([story.session.pk]) == set()  # not settled yet
    settle_all()
    assert may_reduce([story.session.pk]) == set()
    purge_expired_content()
    assert reduce_expired_metadata()["reduced"] == 0
    close(story)
    assert reduce_expired_metadata()["reduced"] == 1
    for period in BillingPeriod.objects.all():
        assert reconcile(period).is_proven
    assert verify().ok


def close(story: Story) -> None:
    """Its months are closed, whatever else there is."""
    months = Settlement.objects.filter(usage=story.session.pk).values("period")
    for period in BillingPeriod.objects.filter(pk__in=months):
        close_period(period.pk, actor="user:pat", despite=frozenset({"unpriced"}))


@pytest.mark.parametrize(
    ("content", "metadata", "good"),
    [(30, 400, True), (30, 30, True), (30, 29, False), (30, 0, True), (0, 400, True)],
)
def test_who_asked_is_known_for_as_long_as_what_was_asked(settings, content, metadata, good):
    tenant = Tenant(name="own", content_days=content, metadata_days=metadata)
    settings.STREAMING = dataclasses.replace(conf(), content_days=content, metadata_days=metadata)
    assert (check_retention(None) == []) is good
    if good:
        tenant.full_clean()
    else:
        with pytest.raises(ValidationError, match="Content is kept for 30 days"):
            tenant.full_clean()


def test_content_that_stays_for_too_long_is_an_incident():
    session = known(40)
    assert watch_overdue() == 1
    assert watch_overdue() == 1
    incident = Incident.objects.get()
    assert (incident.kind, incident.data) == (
        "content_overdue", {"sessions": 1, "partitions": []},
    )  # fmt: skip
    purge_expired_content()
    assert watch_overdue() == 0
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert StreamSession.objects.get(pk=session.pk).purged_at is not None
