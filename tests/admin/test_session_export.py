"""Chosen sessions as a CSV file: who gets it, what is in it, and what never is."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from streaming.admin import finance as money
from streaming.admin import session_export
from streaming.core.ids import uuid7
from streaming.models import OutboxMessage, SessionFence, StreamSession, TenantMember
from tests.admin.rows import ANSWER, QUESTION, add_session
from tests.billing.rows import add_tenant

pytestmark = pytest.mark.django_db

LIST = reverse("admin:streaming_streamsession_changelist")


def client_of(*permissions: str) -> Client:
    user = User.objects.create_user("alice", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def alice() -> Client:
    return client_of("view_streamsession", "export_sessions", "all_tenants")


def export(client: Client, *sessions: StreamSession, **more: str) -> Any:
    chosen = {
        "action": "export_selected",
        "_selected_action": [str(session.pk) for session in sessions],
        **more,
    }
    return client.post(LIST, chosen)


async def joined(blocks: AsyncIterator[bytes]) -> bytes:
    return b"".join([block async for block in blocks])


def lines(response: Any) -> list[dict[str, str]]:
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="sessions-')
    text = async_to_sync(joined)(response.streaming_content).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_session_with_all_that_the_list_has_and_more(alice):
    at = datetime(2026, 11, 3, 16, 5, 12, 345_000, tzinfo=UTC)
    session = add_session(
        created_at=at, outcome="recovered", interrupted_at=at, interrupted_seq=1, gap_ms=38.04,
        interrupted_cause="engine_oom", interrupted_node="gpu-a", seam_grade="exact",
        review="needed",
    )  # fmt: skip
    SessionFence.objects.update(sent_seq=3, taken_seq=3)
    (line,) = lines(export(alice, session))
    expected = {
        "reference": "K7Q-4MX", "session_id": str(session.pk), "tenant": "acme",
        "created_at": "2026-11-03T16:05:12.345Z", "ended_at": "", "outcome": "recovered",
        "interrupted_cause": "engine_oom", "interrupted_after_token": "1", "seam_grade": "exact",
        "gap_ms": "38.0", "noticed": "no", "review": "needed", "attempts": "2", "failovers": "1",
        "answer_tokens": "2", "delivered_tokens": "2", "billed_tokens": "",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected


def test_what_was_charged_is_what_finance_says(alice, monkeypatch):
    session = add_session()

    class Books(money.NoFinance):
        def billed(self, session_ids: Any) -> Mapping[Any, money.Billed]:
            return {pk: money.Billed(2, Decimal(1), "EUR") for pk in session_ids}

    monkeypatch.setattr(money, "_connected", Books())
    (line,) = lines(export(alice, session))
    assert line["billed_tokens"] == "2"


def test_no_content_and_no_formulas(alice):
    session = add_session(end_user="=HYPERLINK(1)", request_id="@SUM(A1)")
    (line,) = lines(export(alice, session))
    assert line["end_user"] == "'=HYPERLINK(1)"
    assert line["request_id"] == "'@SUM(A1)"
    told = " ".join(line.values())
    assert QUESTION not in told
    assert ANSWER not in told


def test_it_is_audited_with_how_many_they_were(alice):
    sessions = [add_session(), add_session()]
    OutboxMessage.objects.all().delete()
    assert len(lines(export(alice, *sessions))) == 2
    (message,) = OutboxMessage.objects.all()
    assert message.data["action"] == "sessions.export"
    assert message.data["actor"] == "user:alice"
    assert message.data["data"] == {"sessions": 2}


def test_all_that_match_the_filter_in_the_order_of_the_list(alice, monkeypatch):
    monkeypatch.setattr(session_export, "PAGE", 2)
    tenant = add_tenant()
    for hour in range(5):
        StreamSession.objects.create(
            id=uuid7(), reference=f"AAA-00{hour}", tenant=tenant, model="m", model_requested="m",
            protocol="openai", request=b"{}", state="completed",
            created_at=datetime(2026, 11, 3, hour, tzinfo=UTC),
        )  # fmt: skip
    other = add_session(state="failed")
    found = lines(
        alice.post(
            f"{LIST}?state__exact=completed",
            {"action": "export_selected", "select_across": "1", "_selected_action": [other.pk]},
        )
    )
    assert [line["reference"] for line in found] == [f"AAA-00{hour}" for hour in range(4, -1, -1)]


def test_more_than_fit_into_one_file_are_none(alice, monkeypatch):
    monkeypatch.setattr(session_export, "MOST", 1)
    response = export(alice, add_session(), add_session())
    assert response.status_code == 302
    assert not OutboxMessage.objects.filter(data__action="sessions.export").exists()
    assert "More than 1 sessions match" in alice.get(LIST).content.decode()


def test_without_the_permission_there_is_no_such_action():
    client = client_of("view_streamsession", "all_tenants")
    session = add_session()
    assert "export_selected" not in client.get(LIST).content.decode()
    assert export(client, session)["Content-Type"].startswith("text/html")
    assert not OutboxMessage.objects.filter(data__action="sessions.export").exists()


def test_nobody_exports_sessions_of_tenants_that_they_do_not_see():
    client = client_of("view_streamsession", "export_sessions")
    theirs = add_session()
    mine = StreamSession.objects.create(
        id=uuid7(), reference="MNE-001", tenant=add_tenant("mine"), model="m", model_requested="m",
        protocol="openai", request=b"{}", state="completed",
    )  # fmt: skip
    TenantMember.objects.create(user=User.objects.get(), tenant=mine.tenant)
    found = lines(export(client, theirs, mine))
    assert [line["reference"] for line in found] == ["MNE-001"]
