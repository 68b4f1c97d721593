"""What changes the story of a session is noted, told again and stored, by however many workers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gateway_project.celery import app
from streaming.models import (
    Attempt,
    ChangedSession,
    Incident,
    OutboxMessage,
    SessionFence,
    StreamSession,
    TaskRun,
)
from streaming.services import explaining
from streaming.services.explaining import blame_of, explain_due, explain_overdue
from streaming.services.facts import facts_of, facts_of_many
from streaming.tasks import explain_sessions
from tests.explaining.course import Course, lost, normal, recovered

pytestmark = pytest.mark.django_db


def test_a_normal_session_is_never_noted():
    normal()
    moved = Course()
    moved.joined()
    moved.attempt("gpu-1")
    moved.tokens(5)
    moved.ends("migrated")
    moved.attempt("gpu-2", "migration", "exact")
    moved.tokens(5)
    moved.finishes()
    assert not ChangedSession.objects.exists()
    assert explain_due() == {"explained": 0, "waiting": 0}


def test_what_is_stored_of_a_failover():
    course = recovered()
    assert explain_due()["explained"] == 1
    row = course.row
    assert (row.outcome, row.interrupted_seq, row.interrupted_node) == ("recovered", 20, "gpu-3")
    assert (row.interrupted_cause, row.seam_grade) == ("engine_oom", "exact")
    assert row.gap_ms == pytest.approx(40, abs=1)  # 20 to notice, 40 to recover, less 20 of pace
    assert not row.noticed
    assert row.review == ""
    assert row.incident is not None
    assert not ChangedSession.objects.exists()


def test_each_stage_of_a_session_shows():
    course = Course()
    course.joined()
    course.attempt("gpu-3")
    course.tokens(20)
    course.fails()
    explain_due()
    assert (course.row.outcome, course.row.review) == ("suspended", "")
    course.goes_on(after_ms=2000)
    explain_due()
    assert (course.row.outcome, course.row.noticed, course.row.review) == (
        "recovered", True, "needed",
    )  # fmt: skip
    course.attempt("gpu-2", "failover", "text")
    course.suspends("gateway_shutdown")
    explain_due()
    assert (course.row.outcome, course.row.interrupted_cause) == ("suspended", "gateway_shutdown")
    course.change(state="abandoned", ended_at=course.now)
    explain_due()
    assert (course.row.outcome, course.row.review) == ("lost", "needed")


def test_a_cause_that_comes_late():
    course = recovered(cause="")
    explain_due()
    assert course.row.interrupted_cause == blame_of("connection_reset") == "network_reset"
    course.is_attributed("engine_crash", 1)
    assert explain_due()["explained"] == 1
    assert course.row.interrupted_cause == "engine_crash"


def test_readers_who_leave_and_come_back():
    course = Course(on_disconnect="finish")
    course.joined()
    course.attempt("gpu-1")
    course.tokens(5)
    course.left("closed")
    explain_due()
    assert (course.row.outcome, course.row.interrupted_cause) == ("left", "client_gone")
    assert course.row.interrupted_seq == 5
    course.tokens(5)
    course.joined("1-2")
    explain_due()
    assert (course.row.outcome, course.row.noticed) == ("recovered", False)
    course.finishes()
    assert explain_due()["explained"] == 1
    assert course.row.incident is None


def test_a_reader_who_comes_for_an_answer_that_was_finished_without_them():
    course = Course()
    course.joined()
    course.attempt("gpu-1")
    course.tokens(20)
    course.ends("gateway_crash", cause="gateway_crash")
    course.event("taken_over", **{"from": 1, "to": 2, "reason": "gateway_crash"})
    course.attempt("gpu-2", "resumption", "exact")
    course.tokens(20)
    SessionFence.objects.filter(session=course.id).update(sent_seq=15, taken_seq=15)
    course.finishes()
    explain_due()
    assert course.row.outcome == "lost"
    SessionFence.objects.filter(session=course.id).update(sent_seq=40, taken_seq=40)
    OutboxMessage.objects.create(
        session_id=course.id, kind="session_delivered", created_at=timezone.now()
    )
    explain_due()
    assert course.row.outcome == "recovered"
    # Late evidence alone makes no story.
    other = normal()
    OutboxMessage.objects.create(
        session_id=other.id, kind="session_delivered", created_at=timezone.now()
    )
    assert not ChangedSession.objects.exists()


def test_what_a_person_says_of_it_stands():
    course = lost()
    explain_due()
    for review in ("assigned", "reviewed"):
        course.change(review=review)
        ChangedSession.objects.create(session_id=course.id)
        explain_due()
        assert course.row.review == review


def test_a_limit_of_changes_and_the_rest_later():
    courses = [recovered() for _ in range(3)]
    told = 0
    while ChangedSession.objects.exists():
        told += explain_due(limit=2)["explained"]
    assert told >= 3
    assert all(course.row.outcome == "recovered" for course in courses)


def test_sessions_that_are_gone_or_cannot_be_told_stop_nobody(monkeypatch, caplog):
    ChangedSession.objects.create(session_id="01890000-0000-7000-8000-000000000000")
    broken, course = recovered(), recovered()
    tell = explaining.tell

    def refuse(facts):
        if facts.tokens == 31:
            raise ValueError("no words")
        return tell(facts)

    broken.change(completion_tokens=31)
    monkeypatch.setattr(explaining, "tell", refuse)
    assert explain_due()["explained"] == 1
    assert course.row.outcome == "recovered"
    assert "a story cannot be told" in caplog.text
    assert not ChangedSession.objects.exists()


def test_four_queries_for_the_facts_however_many():
    courses = [recovered().id, lost().id, normal().id]
    with CaptureQueriesContext(
        connection,
    ) as one:
        facts_of(courses[0])
    with CaptureQueriesContext(connection) as many:
        assert facts_of_many(courses).keys() == set(courses)
    assert len(one) == len(many) == 4
    with pytest.raises(StreamSession.DoesNotExist):
        facts_of(Attempt().pk or "01890000-0000-7000-8000-000000000000")


def test_facts_of_a_session_whose_gateway_could_not_write_any_more():
    course = Course()
    course.attempt("gpu-3")
    course.tokens(20)
    (one,) = facts_of(course.id, charged=7).tries
    assert (one.first_seq, one.last_seq, one.last_token_at) == (1, 20, course.now)
    assert facts_of(course.id, charged=7).charged == 7
    assert facts_of(course.id).tokens == 20


def test_the_task_and_its_schedule():
    recovered()
    assert explain_sessions()["explained"] == 1
    assert TaskRun.objects.get(name="explain_sessions").result["explained"] == 1
    assert app.conf.beat_schedule["explain_sessions"]["schedule"] == 1.0


def test_a_list_is_right_when_the_worker_is_dead():
    course = recovered()
    assert explain_overdue() == 0  # it has not been long
    ChangedSession.objects.update(at=timezone.now() - timedelta(minutes=1))
    assert explain_overdue() == 1
    assert course.row.outcome == "recovered"


class TestTwoAtOnce:
    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def other(self):
        other = connection.copy()
        other.connect()
        yield other
        other.close()

    def test_a_row_that_the_journal_holds_is_told_later_and_delays_nobody(self, other):
        course, free = lost(), recovered()
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                "SELECT 1 FROM streaming_streamsession WHERE id = %s FOR UPDATE", [course.id]
            )
            assert explain_due() == {"explained": 1, "waiting": 1}
            assert free.row.outcome == "recovered"
            cursor.execute("COMMIT")
        assert explain_due() == {"explained": 1, "waiting": 0}
        assert course.row.outcome == "lost"

    def test_a_session_that_another_worker_tells_keeps_its_note(self, other):
        course = lost()
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                "SELECT pg_advisory_xact_lock(%s, hashtext(%s))",
                [explaining.ADVISORY_CLASS, str(course.id)],
            )
            assert explain_due() == {"explained": 0, "waiting": 0}
            cursor.execute("ROLLBACK")
        assert explain_due()["explained"] == 1

    def test_killed_in_the_midst_nothing_is_lost(self):
        course = lost()
        connection.set_autocommit(False)
        assert explain_due()["explained"] == 1
        connection.rollback()
        connection.set_autocommit(True)
        assert course.row.outcome == ""
        assert not Incident.objects.exists()
        assert explain_due()["explained"] == 1
        assert course.row.outcome == "lost"
