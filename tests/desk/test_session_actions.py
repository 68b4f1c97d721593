"""Stopping sessions and having them continued: what can be done to which, by whom, and once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from streaming.models import OutboxMessage, SessionEvent, SessionFence, StreamSession
from streaming.services import orphans, session_actions
from streaming.services.refused import Refused
from tests.desk.staff import told
from tests.tasks.rows import add_gateway, add_session, living_gateway, run_together

PAT = "user:pat"


def soon() -> object:
    return timezone.now() + timedelta(minutes=5)


def suspended(**columns) -> StreamSession:
    return add_session(None, 3, **{"state": "suspended", "resume_until": soon(), **columns})


def flags(session: StreamSession) -> tuple[bool, bool]:
    fence = SessionFence.objects.get(pk=session.pk)
    return fence.stop_requested, fence.continue_requested


def refusal(action, session: StreamSession) -> str:
    with pytest.raises(Refused) as refused:
        action(session.pk, by=PAT)
    return str(refused.value)


@pytest.mark.django_db
def test_a_live_session_is_told_to_stop_once():
    with living_gateway() as gateway:
        session = add_session(gateway, 3)
        session_actions.stop(session.pk, by=PAT)
        assert flags(session) == (True, False)
        session.refresh_from_db()
        assert session.state == "streaming"  # its gateway stops it
        assert "told to stop already" in refusal(session_actions.stop, session)
    assert told() == [("session.stop", PAT, f"session:{session.pk}")]


@pytest.mark.django_db
def test_a_suspended_session_ends_at_once():
    session = suspended()
    session_actions.stop(session.pk, by=PAT)
    session.refresh_from_db()
    assert (session.state, session.cause, session.completion_tokens) == (
        "stopped",
        "client_stop",
        3,
    )
    assert session.ended_at is not None
    assert SessionEvent.objects.filter(session=session, kind="stopped").count() == 1
    assert OutboxMessage.objects.filter(session_id=session.pk, kind="session_ended").count() == 1
    assert told() == [("session.stop", PAT, f"session:{session.pk}")]
    assert "has ended" in refusal(session_actions.stop, session)


@pytest.mark.django_db
def test_an_orphan_that_was_told_to_stop_is_not_suspended_for_its_reader():
    """No gateway lives: the worker sees to it."""
    session = add_session(add_gateway(), 3)
    session_actions.stop(session.pk, by=PAT)
    assert orphans.suspend_orphaned_sessions() == 1
    session.refresh_from_db()
    assert (session.state, session.cause) == ("stopped", "client_stop")
    assert session.completion_tokens == 3


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["completed", "stopped", "cancelled", "failed", "abandoned"])
def test_what_has_ended_is_neither_stopped_nor_continued(state):
    session = add_session(None, 3, state=state, ended_at=timezone.now())
    for action in (session_actions.stop, session_actions.continue_now):
        assert f"has ended: it is {state}" in refusal(action, session)
    assert flags(session) == (False, False)
    assert told() == []


@pytest.mark.django_db
def test_a_suspended_session_and_an_orphan_are_continued():
    for session in (suspended(), add_session(add_gateway(), 3)):
        session_actions.continue_now(session.pk, by=PAT)
        assert flags(session) == (False, True)
        assert "continued already" in refusal(session_actions.continue_now, session)
        assert told() == [("session.continue", PAT, f"session:{session.pk}")]


@pytest.mark.django_db
def test_what_cannot_be_continued_says_why():
    late = suspended(resume_until=timezone.now() - timedelta(seconds=1))
    assert "too long" in refusal(session_actions.continue_now, late)
    purged = add_session(None, state="completed", ended_at=soon(), purged_at=soon())
    assert "purged" in refusal(session_actions.continue_now, purged)
    stopped = suspended()
    SessionFence.objects.filter(pk=stopped.pk).update(stop_requested=True)
    assert "told to stop" in refusal(session_actions.continue_now, stopped)
    with living_gateway() as gateway:
        live = add_session(gateway, 3)
        assert "goes on as it is" in refusal(session_actions.continue_now, live)
    assert told() == []


@pytest.mark.django_db
def test_an_unknown_session_is_refused(db):
    gone = StreamSession(pk="0198c0de-0000-7000-8000-000000000000")
    for action in (session_actions.stop, session_actions.continue_now):
        assert "no such session" in refusal(action, gone)


@pytest.mark.django_db
def test_what_has_moved_on_meanwhile_is_left_alone(monkeypatch):
    session = suspended()
    look = session_actions.standings

    def look_and_be_overtaken(ids):
        found = look(ids)
        SessionFence.objects.filter(pk=session.pk).update(epoch=2)  # its reader has come back
        return found

    monkeypatch.setattr(session_actions, "standings", look_and_be_overtaken)
    assert "moved on" in refusal(session_actions.continue_now, session)
    assert flags(session) == (False, False)
    assert told() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", [session_actions.stop, session_actions.continue_now])
def test_of_several_people_at_once_one_has_done_it(action):
    session = suspended()

    def act() -> bool:
        try:
            action(session.pk, by=PAT)
        except Refused:
            return False
        return True

    assert sorted(run_together(act)) == [False, False, True]
    assert len(told()) == 1
