"""Sessions whose gateway processes have all gone are suspended, once, and wait for their readers.

Those that nobody comes back for are ended, with all that an end has.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from streaming.models import (
    Attempt,
    GatewayInstance,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    TokenCheckpoint,
)
from streaming.services import orphans
from streaming.services.orphans import settle_abandoned_sessions, suspend_orphaned_sessions
from tests.durability.stored import log_from_rows
from tests.tasks.rows import add_attempt, add_gateway, add_session, living_gateway, run_together

database = pytest.mark.django_db(transaction=True)


def open_session(owner: GatewayInstance | None, tokens: int = 0, **columns: Any) -> StreamSession:
    """A session in the midst of its first attempt."""
    session = add_session(owner, tokens, **columns)
    add_attempt(session)
    return session


@pytest.fixture
def alive() -> Iterator[GatewayInstance]:
    with living_gateway() as instance:
        yield instance


@database
def test_the_session_of_a_dead_process_is_suspended_and_explained():
    dead = add_gateway()
    session = open_session(dead, tokens=3)
    assert suspend_orphaned_sessions() == 1
    session.refresh_from_db()
    assert (session.state, session.cause) == ("suspended", "gateway_crash")
    assert session.completion_tokens == 3
    assert session.ended_at is None
    assert session.resume_until > timezone.now()
    assert session.evidence["gateway"] == dead.pk
    fence = SessionFence.objects.get(session=session)
    assert (fence.epoch, fence.durable_seq) == (2, 3)
    assert TokenCheckpoint.objects.get(session=session).terminal is None
    event = SessionEvent.objects.get(session=session)
    assert (event.kind, event.seq, event.data) == ("suspended", 3, {"cause": "gateway_crash"})
    assert OutboxMessage.objects.get().session_id == session.pk
    assert Attempt.objects.get().end_reason == "gateway_crash"


@database
def test_gateways_come_first():
    open_session(add_gateway(heartbeat_at=timezone.now() - timedelta(seconds=10)))
    assert suspend_orphaned_sessions() == 0


@database
def test_the_sessions_of_a_living_process_are_left_alone(alive: GatewayInstance):
    session = open_session(alive, tokens=2)
    assert suspend_orphaned_sessions() == 0
    session.refresh_from_db()
    assert session.ended_at is None


@database
def test_a_frozen_process_keeps_its_lock_but_not_its_heartbeat(alive: GatewayInstance):
    open_session(alive)
    alive.heartbeat_at = timezone.now() - timedelta(seconds=20)
    alive.save()
    assert suspend_orphaned_sessions() == 1


@database
def test_a_stopped_process_has_no_sessions(alive: GatewayInstance):
    open_session(alive)
    alive.heartbeat_at = alive.stopped_at = timezone.now() - timedelta(seconds=20)
    alive.save()
    assert suspend_orphaned_sessions() == 1


@database
def test_suspended_and_ended_sessions_are_left_alone():
    dead = add_gateway()
    open_session(dead, state="suspended")
    open_session(dead, state="completed", ended_at=timezone.now())
    assert suspend_orphaned_sessions() == 0
    assert TokenCheckpoint.objects.count() == 0


@database
def test_an_owner_that_got_there_first_keeps_the_last_word():
    session = open_session(add_gateway(), tokens=1, ended_at=timezone.now())
    assert not orphans._suspend(session.pk, 1, {})
    assert SessionFence.objects.get(session=session).epoch == 1
    assert TokenCheckpoint.objects.count() == 1


@database
def test_a_session_that_was_taken_over_belongs_to_its_new_owner():
    session = open_session(add_gateway(), tokens=1)
    SessionFence.objects.update(epoch=2)
    assert not orphans._suspend(session.pk, 1, {})
    assert TokenCheckpoint.objects.count() == 1


@database
def test_again_and_at_once_it_suspends_each_session_once():
    dead = add_gateway()
    for tokens in range(12):
        open_session(dead, tokens)
    counts = run_together(suspend_orphaned_sessions)
    assert len(counts) == 3
    assert sum(counts) == 12
    assert suspend_orphaned_sessions() == 0
    assert OutboxMessage.objects.count() == SessionEvent.objects.count() == 12


def suspended(seconds_over: float = 60.0, **columns: Any) -> StreamSession:
    """A session whose resume window has been over for a while, and that no gateway has ended."""
    until = timezone.now() - timedelta(seconds=seconds_over)
    return add_session(
        add_gateway(), 3, state="suspended", suspended_at=until, resume_until=until, **columns
    )


def log_of(session: StreamSession) -> Any:
    """The stored log, checked while it is read."""
    columns = (
        "first_seq", "last_seq", "token_ids", "text", "text_ends", "digest", "terminal", "epoch",
    )  # fmt: skip
    rows = TokenCheckpoint.objects.filter(session=session).order_by("first_seq")
    durable = SessionFence.objects.get(session=session).durable_seq
    return log_from_rows(list(rows.values_list(*columns)), durable)


@database
def test_a_session_that_nobody_came_back_for_ends_as_abandoned():
    session = suspended(prompt_tokens=7)
    assert settle_abandoned_sessions() == {"suspended": 0, "abandoned": 1}
    session.refresh_from_db()
    assert (session.state, session.cause, session.completion_tokens) == (
        "abandoned",
        "abandoned",
        3,
    )
    assert session.ended_at is not None
    log = log_of(session)
    assert log.text == "xxx"
    assert log.terminal == {
        "state": "abandoned", "finish_reason": "", "prompt_tokens": 7, "cached_prompt_tokens": None,
    }  # fmt: skip
    event = SessionEvent.objects.get(session=session)
    assert (event.kind, event.seq) == ("abandoned", 4)
    message = OutboxMessage.objects.get()
    assert (message.session_id, message.kind) == (session.pk, "session_ended")


def broken_off(**columns: Any) -> StreamSession:
    """One that an error has suspended."""
    session = suspended(error_code="no_healthy_node", cause="engine_crash", **columns)
    error = {"code": "no_healthy_node", "message": "No node.", "resumable": True}
    for data in ({"cause": "client_gone"}, {"cause": "engine_crash", "error": error}):
        SessionEvent.objects.create(
            session=session, at=timezone.now(), kind="suspended", seq=3, data=data
        )
    return session


@database
def test_what_an_error_had_suspended_ends_with_that_error_and_its_cause():
    session = broken_off(evidence={"because": "It died."})
    assert settle_abandoned_sessions()["abandoned"] == 1
    session.refresh_from_db()
    assert (session.state, session.error_code) == ("abandoned", "no_healthy_node")
    assert (session.cause, session.evidence) == ("engine_crash", {"because": "It died."})
    error = log_of(session).terminal["error"]
    assert (error["code"], error["message"], error["resumable"]) == (
        "no_healthy_node",
        "No node.",
        False,
    )


@database
def test_an_error_is_not_why_an_answer_was_stopped_or_whole():
    whole, stopped = broken_off(finish_reason="stop"), broken_off()
    SessionFence.objects.filter(session=stopped).update(stop_requested=True)
    assert settle_abandoned_sessions()["abandoned"] == 2
    for session in (whole, stopped):
        session.refresh_from_db()
        assert session.error_code == ""
        assert "error" not in log_of(session).terminal


@database
def test_while_it_may_be_resumed_a_session_waits_and_gateways_come_first():
    suspended(seconds_over=-60)
    suspended(seconds_over=5)
    assert settle_abandoned_sessions() == {"suspended": 0, "abandoned": 0}


@database
def test_an_answer_that_was_whole_or_to_be_stopped_ends_as_that():
    whole, stopped = suspended(finish_reason="stop"), suspended()
    SessionFence.objects.filter(session=stopped).update(stop_requested=True)
    assert settle_abandoned_sessions()["abandoned"] == 2
    for session in (whole, stopped):
        session.refresh_from_db()
    assert (whole.state, whole.cause) == ("completed", "")
    assert log_of(whole).terminal["finish_reason"] == "stop"
    assert (stopped.state, stopped.cause) == ("stopped", "client_stop")


@database
def test_whoever_came_back_meanwhile_keeps_the_session():
    session = suspended()
    SessionFence.objects.update(epoch=2)
    assert not orphans.end_suspended_session(session.pk, 1)
    StreamSession.objects.update(state="recovering")
    assert not orphans.end_suspended_session(session.pk, 2)
    assert SessionFence.objects.get().durable_seq == 3
    assert log_of(session).terminal is None


@database
def test_again_and_at_once_it_ends_each_session_once():
    for _ in range(12):
        suspended()
    counts = run_together(lambda: settle_abandoned_sessions()["abandoned"])
    assert sum(counts) == 12
    assert OutboxMessage.objects.count() == SessionEvent.objects.count() == 12
    assert TokenCheckpoint.objects.filter(terminal__isnull=False).count() == 12
