"""Made-up sessions stand up to everything that real ones do."""

from __future__ import annotations

import random
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing.models import BillingPeriod, PricePlan, UsageRecord
from billing.services.reconciliation import reconcile
from gateway_project.demo import calendar, courses, fleet
from gateway_project.demo.answers import answer
from gateway_project.demo.copying import Batch
from gateway_project.demo.course import Course
from gateway_project.demo.faults import FAULTS
from gateway_project.demo.session_rows import write
from streaming.core.outcome import Outcome
from streaming.core.story import tell
from streaming.models import (
    ApiKey,
    ChangedSession,
    Incident,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)
from streaming.services.explaining import blame_of
from streaming.services.facts import facts_of
from tests.admin.rows import add_session
from tests.billing.rows import settle_all

pytestmark = pytest.mark.django_db


def seed(**options) -> str:
    out = StringIO()
    call_command(
        "seed_demo", stdout=out, **{"sessions": 60, "days": 3.0, "tenants": 2, "seed": 1, **options}
    )
    return out.getvalue()


def test_books_and_logs_of_every_course_are_proven():
    chance = random.Random(1)
    world = prepared(chance)
    batch = Batch()
    usual = [make for make, _ in courses.USUAL]
    for make in [*usual, *courses.OF_GATEWAYS.values()]:
        course = begun(world, chance)
        make(course)
        write(course, batch, announced=True)
    for fault in FAULTS:
        course = begun(world, chance)
        courses.failed_over(course, fault, siblings=3)
        write(course, batch, announced=True)
    batch.write()
    settle_all()
    assert UsageRecord.objects.count() == batch.sessions
    for period in BillingPeriod.objects.all():
        report = reconcile(period)
        assert report.differences == []
        assert report.in_flux == 0


def test_it_says_what_it_has_made():
    said = seed(sessions=15)
    assert "15 sessions with" in said
    assert "15 sessions settled." in said
    assert "Seed 1." in said
    assert not StreamSession.objects.filter(ended_at__gt=timezone.now()).exists()


@pytest.mark.django_db(transaction=True)  # notes of one's own transaction are told after it
def test_they_are_explained():
    seed(sessions=300, billing="never")
    assert not ChangedSession.objects.exists()
    assert StreamSession.objects.filter(review="reviewed").exists()
    found = set(StreamSession.objects.values_list("outcome", flat=True))
    assert found >= {"", *(outcome.value for outcome in (Outcome.RECOVERED, Outcome.LEFT))}
    # Storms are incidents, one of them in the last night, and one of a gateway.
    assert Incident.objects.filter(kind="interruption", subject__startswith="gateway").exists()
    for session in StreamSession.objects.exclude(outcome="")[:20]:
        assert tell(facts_of(session.pk)).sentence


def test_the_same_seed_makes_the_same_course():
    seed(billing="never")
    first = list(StreamSession.objects.order_by("pk").values_list("state", "completion_tokens"))
    StreamSession.objects.all().delete()
    seed(billing="never")
    again = list(StreamSession.objects.order_by("pk").values_list("state", "completion_tokens"))
    assert sorted(again) == sorted(first)


def test_tenants_keys_and_prices_are_made_once():
    seed(billing="never")
    made = (Tenant.objects.count(), ApiKey.objects.count(), PricePlan.objects.count())
    assert made == (2, 4, 2)
    seed(billing="never", seed=2)
    assert (Tenant.objects.count(), ApiKey.objects.count(), PricePlan.objects.count()) == made
    assert StreamSession.objects.count() == 120


def test_beside_sessions_of_others_only_for_who_says_so():
    add_session()
    with pytest.raises(CommandError, match="--beside"):
        seed()
    assert not Tenant.objects.filter(name__startswith=fleet.PREFIX).exists()
    seed(beside=True, billing="never")
    assert StreamSession.objects.count() == 61


@pytest.mark.parametrize(
    "wrong", [{"sessions": -1}, {"days": 0.0}, {"tenants": 0}, {"days": 999.0}]
)
def test_what_cannot_be_made_is_refused(wrong):
    with pytest.raises(CommandError):
        seed(**wrong)
    assert not StreamSession.objects.exists()


def test_real_answers_take_a_gateway():
    with pytest.raises(CommandError, match="--url"):
        seed(sessions=0, real=1)


def test_memory_holds_a_batch_at_a_time(monkeypatch):
    monkeypatch.setattr(calendar, "SESSIONS_AT_ONCE", 25)
    chance = random.Random(1)
    world = prepared(chance)
    batches = list(calendar.batches(world, chance, 90, announced=True))
    assert [batch.sessions for batch in batches] == [25, 25, 25, 15]


def test_rows_of_the_log_are_what_the_answer_is():
    made = answer(random.Random(3), "chat-default")
    assert made.cuts[0] == 1
    assert len(made.cuts) == len(made.digests) == len(made.rows)
    assert list(made.cuts) == sorted(set(made.cuts))
    assert made.prompt_tokens > 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.seen.value)
def test_every_fault_has_a_cause_that_is_known(fault):
    cause, evidence = fault.judged(random.Random(1), 1.0, 3)
    assert blame_of(cause) == cause
    assert evidence["because"]


def test_some_are_told_in_letters_beyond_latin():
    seed(sessions=200, billing="never")
    texts = (bytes(text) for text in TokenCheckpoint.objects.values_list("text", flat=True))
    assert any(max(text.decode(), default="") > "\u3000" for text in texts)


def prepared(chance: random.Random) -> fleet.World:
    yesterday = timezone.now() - timedelta(days=1)
    return fleet.prepare(chance, tenants=1, users=8, starts_at=yesterday, by="system")


def begun(world: fleet.World, chance: random.Random) -> Course:
    model = next(iter(fleet.MODELS))
    at = (timezone.now() - timedelta(hours=8)).timestamp()
    made = answer(chance, model)
    course = Course(world, chance, customer=world.customers[0], model=model, answer=made, at=at)
    course.begin(fleet.MODELS[model][0])
    return course
