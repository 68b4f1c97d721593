"""What is announced in the outbox enters the log once, in its order."""

from __future__ import annotations

import json
import threading

import pytest
from django.db import connection, transaction

from billing.models import AuditEntry
from billing.services import announcements, audit
from billing.services.verification import verify
from streaming.core.ids import uuid7
from streaming.models import OutboxMessage
from streaming.services.audit import announce
from tests.tasks.rows import run_together


@pytest.mark.django_db
def test_an_announcement_becomes_an_entry():
    session = uuid7()
    announce(
        "node.drain", actor="user:pat", subject="node:gpu-1", tenant_id=7, session_id=session,
        weight=0.5, options={"b": 1.5, "a": [1]}, text="x\x00\udcff", on=True, none=None, count=3,
    )  # fmt: skip
    message = OutboxMessage.objects.get()
    assert message.handled_at is None
    assert announcements.append_waiting() == 1
    message.refresh_from_db()
    assert message.handled_at is not None
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.subject) == ("node.drain", "user:pat", "node:gpu-1")
    assert (entry.tenant_id, entry.session_id) == (7, session)
    data = json.loads(entry.data)
    assert data.pop("announced_at").startswith(f"{message.created_at:%Y-%m-%dT%H:%M:%S}")
    assert data == {
        "weight": "0.5", "options": '{"a": [1], "b": 1.5}', "text": "x\ufffd\ufffd", "on": True,
        "none": None, "count": 3,
    }  # fmt: skip
    assert announcements.append_waiting() == 0
    assert verify().ok


@pytest.mark.django_db
def test_they_keep_their_order_and_wait_their_turn():
    OutboxMessage.objects.create(
        kind="session_ended", session_id=uuid7(), created_at="2026-01-01T00:00Z"
    )
    for n in range(5):
        announce("node.drain", actor="user:pat", subject=f"node:{n}")
    assert [announcements.append_waiting(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    subjects = AuditEntry.objects.order_by("seq").values_list("subject", flat=True)
    assert list(subjects) == [f"node:{n}" for n in range(5)]
    assert OutboxMessage.objects.get(handled_at=None).kind == "session_ended"


@pytest.mark.django_db(transaction=True)
def test_several_at_once_append_each_once():
    for n in range(9):
        announce("node.drain", actor="user:pat", subject=f"node:{n}")
    appended = run_together(lambda: [announcements.append_waiting(limit=2) for _ in range(5)])
    while announcements.append_waiting(limit=2):
        pass
    subjects = AuditEntry.objects.order_by("seq").values_list("subject", flat=True)
    assert list(subjects) == [f"node:{n}" for n in range(9)]
    assert sum(map(sum, appended)) <= 9


@pytest.mark.django_db(transaction=True)
def test_what_could_not_be_appended_waits(monkeypatch):
    announce("node.drain", actor="user:pat", subject="node:a")
    append_many = audit.append_many

    def fail(drafts):
        append_many(drafts)
        raise ConnectionError

    monkeypatch.setattr(audit, "append_many", fail)
    with pytest.raises(ConnectionError):
        announcements.append_waiting()
    monkeypatch.undo()
    assert not AuditEntry.objects.exists()
    assert announcements.append_waiting() == 1


@pytest.mark.django_db(transaction=True)
def test_who_comes_second_does_not_wait():
    announce("node.drain", actor="user:pat", subject="node:a")
    found = []

    def elsewhere() -> None:
        found.append(announcements.append_waiting())
        connection.close()

    with transaction.atomic():
        assert announcements.append_waiting() == 1
        second = threading.Thread(target=elsewhere)
        second.start()
        second.join()
    assert found == [0]
    assert AuditEntry.objects.count() == 1
