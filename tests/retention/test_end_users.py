"""All of one end user's data, handed out or forgotten: by code, by command and in the admin."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from billing.models import BillingPeriod
from billing.services.reconciliation import reconcile
from streaming.models import IdempotencyKey, OutboxMessage, StreamSession, Tenant, TokenCheckpoint
from streaming.services import retention
from streaming.services.refused import Refused
from streaming.services.retention import erase_end_user, export_end_user
from tests.billing.rows import ended_session, settle_all
from tests.desk.staff import ALL, logged_in, member
from tests.retention.test_reduction import known
from tests.tasks.rows import add_gateway, add_session, living_gateway

pytestmark = pytest.mark.django_db(transaction=True)

WHO = "visitor-1"


def exported(tenant_id: int, user: str = WHO) -> list[dict[str, Any]]:
    return [
        json.loads(json.dumps(piece)) for piece in export_end_user(tenant_id, user, by="user:a")
    ]


def told() -> list[dict[str, Any]]:
    found = OutboxMessage.objects.filter(kind="audit").order_by("pk")
    return [message.data for message in found]


def test_everything_is_handed_out_piece_by_piece(monkeypatch):
    monkeypatch.setattr(retention, "SESSIONS", 1)
    first, second = known(1), known(2)
    known(1, tenant=Tenant.objects.create(name="other"))
    add_session(None, 3, end_user="visitor-10")
    pieces = exported(first.tenant_id)
    assert pieces[0]["kind"] == "export"
    assert pieces[-1] == {"kind": "end", "sessions": 2}
    of_first = [piece for piece in pieces if piece.get("session") == str(first.pk)]
    kinds = {piece["kind"]: piece for piece in of_first}
    assert set(kinds) == {"request", "answer", "attempt", "event", "idempotency_key", "review"}
    assert kinds["request"]["body"] == "{}"
    assert kinds["answer"]["text"] == "xxx"
    assert kinds["review"]["note"] == "Ms X called"
    sessions = {piece["id"] for piece in pieces if piece["kind"] == "session"}
    assert sessions == {str(first.pk), str(second.pk)}
    ((said),) = told()
    assert said["action"] == "end_user.export"
    assert said["data"] == {"sessions": 2}
    assert WHO not in json.dumps(said)


def test_usage_is_part_of_it():
    story = ended_session(10, end_user=WHO)
    settle_all()
    (usage,) = [piece for piece in exported(story.session.tenant_id) if piece["kind"] == "usage"]
    assert usage["session"] == str(story.session.pk)
    assert usage["billed_tokens"] == 10


def test_an_end_user_is_forgotten_and_the_bill_stays():
    story = ended_session(10, end_user=WHO)
    settle_all()
    tenant_id = story.session.tenant_id
    kept = add_session(None, 3, end_user="somebody else", tenant=story.session.tenant)
    assert erase_end_user(tenant_id, WHO, by="user:alice") == 1
    session = StreamSession.objects.get(pk=story.session.pk)
    assert session.end_user.startswith("erased-")
    assert session.purged_at is not None
    assert session.reduced_at is not None
    assert set(TokenCheckpoint.objects.values_list("session", flat=True)) == {kept.pk}
    for period in BillingPeriod.objects.all():
        assert reconcile(period).is_proven
    (said,) = [said for said in told() if said["action"] == "end_user.erase"]
    assert (said["actor"], said["data"]["sessions"]) == ("user:alice", 1)
    assert WHO not in json.dumps(said)
    assert exported(tenant_id)[-1] == {"kind": "end", "sessions": 0}
    assert erase_end_user(tenant_id, WHO, by="user:alice") == 0


def test_whoever_comes_again_is_somebody_new():
    session = known(1)
    erase_end_user(session.tenant_id, WHO, by="user:alice")
    assert not IdempotencyKey.objects.exists()
    again = add_session(None, 3, end_user=WHO)
    assert StreamSession.objects.get(end_user=WHO) == again
    assert TokenCheckpoint.objects.get().session_id == again.pk


def test_what_is_suspended_is_stopped_first():
    session = add_session(
        None, 3, end_user=WHO, state="suspended", resume_until=timezone.now()
    )  # fmt: skip
    assert erase_end_user(session.tenant_id, WHO, by="user:alice") == 1
    session.refresh_from_db()
    assert session.state == "stopped"
    assert not TokenCheckpoint.objects.exists()


def test_what_does_not_end_is_not_half_erased(monkeypatch):
    monkeypatch.setattr(retention, "STOP_SECONDS", 0.1)
    with living_gateway() as gateway:
        live = add_session(gateway, 3, end_user=WHO)
        ended = known(1)
        with pytest.raises(Refused, match="1 of their sessions have not ended"):
            erase_end_user(live.tenant_id, WHO, by="user:alice")
    live.fence.refresh_from_db()
    assert live.fence.stop_requested
    ended.refresh_from_db()
    assert ended.purged_at is None


@pytest.mark.parametrize("act", [erase_end_user, export_end_user])
def test_nobodys_sessions_are_not_one_persons(act):
    session = add_session(add_gateway(), 3)
    with pytest.raises(Refused, match="whose"):
        act(session.tenant_id, "", by="user:alice")


def test_the_command(monkeypatch):
    session = known(1)
    out = io.StringIO()
    call_command("end_user", "export", "--tenant", "acme", "--user", WHO, stdout=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1] == {"kind": "end", "sessions": 1}
    out = io.StringIO()
    call_command("end_user", "erase", "--tenant", "acme", "--user", WHO, "--yes", stdout=out)
    assert out.getvalue() == "Erased: 1 sessions.\n"
    assert not StreamSession.objects.filter(end_user=WHO).exists()
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody is there to type the name
    with pytest.raises(CommandError, match="--yes"):
        call_command("end_user", "erase", "--tenant", "acme", "--user", "somebody else")
    with pytest.raises(CommandError, match="no tenant called nobody"):
        call_command("end_user", "export", "--tenant", "nobody", "--user", WHO)
    assert session.tenant.name == "acme"


def test_the_page():
    session = known(1)
    url = reverse("admin:streaming_tenant_end_user", args=[session.tenant_id])
    pat = logged_in(member("pat", ["view_tenant", "purge_content", "reveal_content", ALL]))
    tenant_page = reverse("admin:streaming_tenant_change", args=[session.tenant_id])
    assert url in pat.get(tenant_page).text
    assert "Erase for good" in pat.get(url).text
    answer = pat.post(url, {"export-user": WHO, "export": "Export"})
    lines = b"".join(answer.streaming_content).splitlines()
    assert json.loads(lines[-1]) == {"kind": "end", "sessions": 1}
    assert WHO not in answer["Content-Disposition"]
    wrong = {"erase-user": WHO, "erase-again": "visitor-2", "erase": "Erase for good"}
    assert "This is not the same" in pat.post(url, wrong).text
    assert StreamSession.objects.filter(end_user=WHO).exists()
    done = pat.post(url, {**wrong, "erase-again": WHO}, follow=True)
    assert "Erased: 1 sessions." in done.text
    assert not StreamSession.objects.filter(end_user=WHO).exists()
    assert {said["action"] for said in told()} == {"end_user.export", "end_user.erase"}


@pytest.mark.parametrize("permissions", [["view_tenant", ALL], ["view_tenant", "purge_content"]])
def test_the_page_takes_a_permission_and_the_tenant(permissions):
    session = known(1)
    url = reverse("admin:streaming_tenant_end_user", args=[session.tenant_id])
    client = logged_in(member("pat", permissions))
    assert client.get(url).status_code in (403, 404)
    erase = {"erase-user": WHO, "erase-again": WHO, "erase": "Erase for good"}
    assert client.post(url, erase).status_code in (403, 404)
    assert StreamSession.objects.filter(end_user=WHO).exists()


def test_who_may_not_see_content_exports_none():
    session = known(1)
    url = reverse("admin:streaming_tenant_end_user", args=[session.tenant_id])
    client = logged_in(member("pat", ["view_tenant", "purge_content", ALL]))
    assert "Export" not in client.get(url).text.split("<h2>")[1]
    assert client.post(url, {"export-user": WHO, "export": "Export"}).status_code == 403
