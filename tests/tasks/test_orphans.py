"""Sessions whose gateway processes have all gone are suspended, once, and wait for their readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from streaming.core.digest import RunningDigest
from streaming.core.ids import reference_code
from streaming.models import (
    Attempt,
    GatewayInstance,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)
from streaming.runtime.journal import ADVISORY_CLASS
from streaming.services import orphans
from streaming.tasks import suspend_orphaned_sessions

database = pytest.mark.django_db(transaction=True)


def gateway(**columns: Any) -> GatewayInstance:
    """A process that holds no lock: long dead, unless the test takes its lock."""
    long_ago = timezone.now() - timedelta(minutes=1)
    columns = {"started_at": long_ago, "heartbeat_at": long_ago, **columns}
    return GatewayInstance.objects.create(hostname="h", pid=1, **columns)


def open_session(owner: GatewayInstance | None, tokens: int = 0, **columns: Any) -> StreamSession:
    """A session in the midst of its answer, with ``tokens`` in its log."""
    tenant, _ = Tenant.objects.get_or_create(name="acme")
    columns = {"state": "streaming", **columns}
    session = StreamSession.objects.create(
        reference=reference_code(), tenant=tenant, protocol="openai", model="m",
        model_requested="m", request=b"{}", owner=owner, **columns,
    )  # fmt: skip
    SessionFence.objects.create(session=session, epoch=1, durable_seq=tokens)
    Attempt.objects.create(
        session=session, number=1, epoch=1, node_name="a", engine_request_id="r",
        started_at=timezone.now(),
    )  # fmt: skip
    if tokens:
        digest = RunningDigest()
        digest.update(b"\1\0\0\0" * tokens, b"x" * tokens)
        TokenCheckpoint.objects.create(
            session=session, epoch=1, attempt=1, first_seq=1, last_seq=tokens,
            token_ids=b"\1\0\0\0" * tokens, text=b"x" * tokens,
            text_ends=b"".join((n + 1).to_bytes(4, "little") for n in range(tokens)),
            digest=digest.digest(), created_at=timezone.now(),
        )  # fmt: skip
    return session


@pytest.fixture
def alive() -> Iterator[GatewayInstance]:
    """A process that lives: it holds its lock, by a connection of its own."""
    instance = gateway(heartbeat_at=timezone.now())
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{n: parameters[n] for n in names if parameters.get(n)}) as holder:
        holder.execute("SELECT pg_advisory_lock(%s, %s)", (ADVISORY_CLASS, instance.pk))
        yield instance


@database
def test_the_session_of_a_dead_process_is_suspended_and_explained():
    dead = gateway()
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
    open_session(gateway(heartbeat_at=timezone.now() - timedelta(seconds=10)))
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
    dead = gateway()
    open_session(dead, state="suspended")
    open_session(dead, state="completed", ended_at=timezone.now())
    assert suspend_orphaned_sessions() == 0
    assert TokenCheckpoint.objects.count() == 0


@database
def test_an_owner_that_got_there_first_keeps_the_last_word():
    session = open_session(gateway(), tokens=1, ended_at=timezone.now())
    assert not orphans._suspend(session.pk, 1, {})
    assert SessionFence.objects.get(session=session).epoch == 1
    assert TokenCheckpoint.objects.count() == 1


@database
def test_a_session_that_was_taken_over_belongs_to_its_new_owner():
    session = open_session(gateway(), tokens=1)
    SessionFence.objects.update(epoch=2)
    assert not orphans._suspend(session.pk, 1, {})
    assert TokenCheckpoint.objects.count() == 1


@database
def test_again_and_at_once_it_suspends_each_session_once():
    dead = gateway()
    for tokens in range(12):
        open_session(dead, tokens)
    together = threading.Barrier(3)
    counts: list[int] = []

    def sweep() -> None:
        together.wait()
        counts.append(suspend_orphaned_sessions())
        connection.close()

    sweepers = [threading.Thread(target=sweep) for _ in range(3)]
    for sweeper in sweepers:
        sweeper.start()
    for sweeper in sweepers:
        sweeper.join()
    assert len(counts) == 3
    assert sum(counts) == 12
    assert suspend_orphaned_sessions() == 0
    assert OutboxMessage.objects.count() == SessionEvent.objects.count() == 12
