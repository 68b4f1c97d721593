"""Looking into sessions: by one person at a time, found out once, and told to the audit log."""

from __future__ import annotations

import json

import pytest
from django.db import connection, transaction

from streaming.models import OutboxMessage, SessionReview, StreamSession
from streaming.services import reviews
from streaming.services.refused import Refused
from tests.desk.staff import hit, interruption, member, told
from tests.tasks.rows import add_session, run_together

PAT = "user:pat"


@pytest.fixture
def pat(db):
    return member("pat", ["review_session"])


@pytest.fixture
def sam(db):
    return member("sam", ["review_session"])


def state(session: StreamSession) -> tuple[str, str]:
    """Whether it waits for somebody, and for whom."""
    review = SessionReview.objects.get(pk=session.pk)
    session.refresh_from_db(fields=["review"])
    return session.review, str(review.assignee or "")


def test_a_session_is_assigned_taken_away_and_assigned_anew(pat, sam):
    session = add_session(None, review="needed")
    reviews.take(session.pk, user=pat, by=PAT)
    assert state(session) == ("assigned", "pat")
    with pytest.raises(Refused, match="by pat already"):
        reviews.take(session.pk, user=sam, by="user:sam")
    reviews.assign(session.pk, user=sam, by=PAT)
    assert state(session) == ("assigned", "sam")
    reviews.assign(session.pk, user=None, by=PAT)
    assert state(session) == ("needed", "")
    with pytest.raises(Refused, match="Nobody looks into"):
        reviews.assign(session.pk, user=None, by=PAT)
    assert told() == [("session.assign", PAT, f"session:{session.pk}")] * 3


def test_only_who_may_review_is_assigned(pat):
    session = add_session(None)
    for user in (member("new"), member("gone", ["review_session"], is_active=False)):
        with pytest.raises(Refused, match="may not look into"):
            reviews.assign(session.pk, user=user, by=PAT)
    assert not SessionReview.objects.exists()
    assert told() == []


def test_what_was_found_is_kept_and_what_was_reviewed_can_be_reopened(pat):
    session = add_session(None, review="needed")
    reviews.assign(session.pk, user=pat, by=PAT)
    reviews.mark_reviewed(session.pk, note="  the node was out of memory ", ticket="T-1", by=PAT)
    review = SessionReview.objects.get()
    assert (review.note, review.ticket) == ("the node was out of memory", "T-1")
    assert (review.reviewed_by, review.reviewed_at is None) == (PAT, False)
    assert state(session) == ("reviewed", "pat")
    for again in (
        lambda: reviews.mark_reviewed(session.pk, note="x", ticket="", by=PAT),
        lambda: reviews.assign(session.pk, user=None, by=PAT),
    ):
        with pytest.raises(Refused, match="reopen it"):
            again()
    reviews.reopen(session.pk, by=PAT)
    assert state(session) == ("assigned", "pat")
    review.refresh_from_db()
    assert (review.ticket, review.reviewed_by, review.reviewed_at) == ("T-1", "", None)
    with pytest.raises(Refused, match="was not reviewed"):
        reviews.reopen(session.pk, by=PAT)
    assert [action for action, _, _ in told()] == [
        "session.assign", "session.review", "session.reopen",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("note", "ticket"),
    [("", " "), ("x" * 4001, ""), ("x", "T" * 65)],
    ids=["nothing", "long", "no"],
)
def test_what_says_nothing_or_too_much_is_refused(db, note, ticket):
    session = add_session(None, review="needed")
    with pytest.raises(Refused):
        reviews.mark_reviewed(session.pk, note=note, ticket=ticket, by=PAT)
    assert told() == []


def test_notes_are_in_no_log(db):
    session = add_session(None)
    reviews.mark_reviewed(session.pk, note="Mrs Miller is upset", ticket="T-1", by=PAT)
    (message,) = OutboxMessage.objects.filter(kind="audit")
    assert "Miller" not in json.dumps(message.data)
    assert message.data["data"]["ticket"] == "T-1"
    assert (message.session_id, message.data["tenant_id"]) == (session.pk, session.tenant_id)


@pytest.mark.django_db(transaction=True)
def test_of_several_people_at_once_one_has_reviewed_it_and_one_has_it(django_user_model):
    session = add_session(None, review="needed")
    people = [member(f"person-{n}", ["review_session"]) for n in range(3)]
    waiting = iter(people)

    def take() -> str:
        user = next(waiting)
        try:
            reviews.take(session.pk, user=user, by=f"user:{user}")
        except Refused as refusal:
            return str(refusal)
        return "mine"

    answers = run_together(take)
    assert answers.count("mine") == 1
    assert sum("already" in answer for answer in answers) == 2
    assert len(told()) == 1

    def review() -> bool:
        try:
            reviews.mark_reviewed(session.pk, note="x", ticket="", by=PAT)
        except Refused:
            return False
        return True

    assert sorted(run_together(review)) == [False, False, True]
    assert len(told()) == 1


def test_all_sessions_of_an_incident_are_assigned_and_reviewed(pat, sam, monkeypatch):
    monkeypatch.setattr(reviews, "BATCH", 3)
    incident = interruption()
    sessions = [hit(incident) for _ in range(7)]
    nobody_need = hit(incident, review="")
    elsewhere = hit(interruption(subject="gpu-b"))
    reviews.assign(sessions[0].pk, user=sam, by=PAT)
    reviews.mark_reviewed(sessions[1].pk, note="before", ticket="", by=PAT)
    told()

    all_of_them = StreamSession.objects.filter(incident=incident)
    assert reviews.assign_all(all_of_them, incident, user=pat, by=PAT) == 5
    assert [state(session)[1] for session in sessions] == ["sam", "", *["pat"] * 5]
    announced = told()
    assert announced[-1] == ("incident.assign", PAT, f"incident:{incident.pk}")
    assert len(announced) == len(set(announced)) == 6

    assert reviews.review_all(all_of_them, incident, note="one cause", ticket="T-9", by=PAT) == 6
    assert {state(session)[0] for session in sessions} == {"reviewed"}
    assert SessionReview.objects.get(pk=sessions[1].pk).note == "before"
    assert SessionReview.objects.get(pk=sessions[0].pk).ticket == "T-9"
    announced = told()
    assert len(announced) == len(set(announced)) == 7
    assert reviews.review_all(all_of_them, incident, note="x", ticket="", by=PAT) == 0
    assert told() == []
    for left_alone in (nobody_need, elsewhere):
        assert not SessionReview.objects.filter(pk=left_alone.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_session_that_somebody_holds_is_done_last(monkeypatch):
    """A gateway may be writing one of them, and wait for another in its turn."""
    monkeypatch.setattr(reviews, "BATCH", 2)
    incident = interruption()
    sessions = sorted((hit(incident) for _ in range(4)), key=lambda session: session.pk)
    all_of_them = StreamSession.objects.filter(incident=incident)
    order: list[object] = []
    tell = reviews._announce_all

    def note(action, batch, by, **data):
        order.extend(session.pk for session in batch)
        tell(action, batch, by, **data)

    monkeypatch.setattr(reviews, "_announce_all", note)
    holder = connection.copy()
    with transaction.atomic(), holder.cursor() as cursor:
        holder.set_autocommit(False)
        cursor.execute(
            "SELECT 1 FROM streaming_streamsession WHERE id = %s FOR UPDATE", [sessions[0].pk]
        )
    released: list[object] = []

    def release(action, batch, by, **data):
        note(action, batch, by, **data)
        if len(order) == 3:  # all but the one that is held
            holder.rollback()
            holder.close()
            released.append(True)

    monkeypatch.setattr(reviews, "_announce_all", release)
    assert reviews.review_all(all_of_them, incident, note="x", ticket="", by=PAT) == 4
    assert released
    assert order == [session.pk for session in [*sessions[1:], sessions[0]]]
