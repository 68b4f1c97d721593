"""The evidence of a session: whole, masked, provable, and audited when it leaves the house."""

from __future__ import annotations

import hashlib
import json
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from billing.services.settlement import settle_due
from streaming.admin.bundle import MASKED, bundle, canonical
from streaming.models import OutboxMessage, SessionEvent, StreamSession, TokenCheckpoint
from tests.admin.cases import add_course, at, recovered
from tests.billing.rows import add_plan

pytestmark = pytest.mark.django_db

AMOUNT = "3.665"
REASON = {"reason": "Ticket 4711: the answer stopped in the middle."}
SECRETS = ("lighthouse", "word word", "visitor-7", "Tried to allocate", "CUDA")


def url_of(session, name: str) -> str:
    return reverse(f"admin:streaming_streamsession_{name}", args=[session.pk])


def announced() -> list[dict]:
    rows = OutboxMessage.objects.filter(kind="audit").order_by("pk").values_list("data", flat=True)
    return list(rows)


def test_it_tells_the_whole_story():
    session = recovered()
    told = bundle(session.pk)
    assert (told["format"], told["version"]) == ("unbroken.session-evidence", 1)
    assert told["sentence"].startswith("The engine gpu-3 ran out of memory after token 412")
    assert told["session"]["id"] == str(session.pk)
    assert told["session"]["created_at"] == "2026-11-03T02:13:04+00:00"
    assert told["story"]["outcome"] == "recovered"
    assert [one["seam_grade"] for one in told["attempts"]] == ["", "exact"]
    assert told["attempts"][0]["reclaim_in_words"].endswith("was freed, and this was verified")
    assert [one["kind"] for one in told["events"]] == [
        "created", "reader_joined", "recovering", "recovered", "completed",
    ]  # fmt: skip
    assert told["log"]["ranges"] == [
        {"attempt": 1, "first_seq": 1, "last_seq": 412},
        {"attempt": 2, "first_seq": 413, "last_seq": 733},
    ]
    assert told["log"]["digest"] == f"{733 % 256:02x}" * 16
    assert told["log"]["marks"]["delivered"] == 734
    assert told["content"] is None


def test_it_tells_how_it_was_delivered_and_what_rules_did():
    session = recovered()
    assert bundle(session.pk)["session"]["health_in_words"] == ""
    token = uuid4()
    StreamSession.objects.filter(pk=session.pk).update(
        level="economy", variant="b-7", health=30, content_action="flag", content_rule="names",
        embed_token_id=token,
    )  # fmt: skip
    for kind, data in (
        ("filtered", {"rule": "names", "action": "flag", "count": 2}),
        ("client_report", {"largest_gap_ms": 900, "transport": "sse"}),
    ):
        SessionEvent.objects.create(session=session, at=at(9000), kind=kind, seq=400, data=data)
    told = bundle(session.pk)
    expected = {
        "level": "economy", "variant": "b-7", "health": 30, "health_in_words": "weak",
        "content_action": "flag", "content_rule": "names", "embed_token_id": str(token),
    }  # fmt: skip
    assert {name: told["session"][name] for name in expected} == expected
    words = {one["kind"]: one["in_words"] for one in told["events"]}
    assert words["filtered"] == "Content rule “names” found something in the answer 2 times."
    assert words["client_report"].startswith("The client reported: largest gap 900 ms, over server")
    assert told["masked"] is True


def test_it_is_masked():
    session = recovered()
    told = bundle(session.pk)
    text = json.dumps(told)
    assert not any(secret in text for secret in SECRETS)
    assert told["masked"] is True
    assert told["attempts"][0]["said"] == MASKED
    assert told["attempts"][0]["evidence"]["said"] == MASKED


def test_its_end_user_is_a_digest_that_differs_between_people_and_tenants():
    one, same, other = recovered(), recovered(), recovered()
    StreamSession.objects.filter(pk=other.pk).update(end_user="visitor-8")
    nobody = add_course(end_user="")
    digests = [
        bundle(session.pk)["session"]["end_user_digest"] for session in (one, same, other, nobody)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert digests[3] == ""


def test_with_content_it_has_all_of_it():
    session = recovered()
    told = bundle(session.pk, with_content=True)
    assert told["masked"] is False
    assert "lighthouse" in told["content"]["request"]
    assert [part["text"] for part in told["content"]["answer"]] == ["word " * 412, "word " * 321]
    assert told["attempts"][0]["said"].startswith("CUDA out of memory")


def test_its_digest_is_over_everything_else():
    told = bundle(recovered().pk)
    given = told.pop("sha256")
    assert hashlib.sha256(canonical(told)).hexdigest() == given
    told["log"]["delivered"] = 1
    assert hashlib.sha256(canonical(told)).hexdigest() != given


def test_of_a_purged_session_the_digest_is_left():
    session = recovered()
    TokenCheckpoint.objects.all().delete()
    StreamSession.objects.update(request=b"", purged_at=at(86_400_000), log_digest=b"\xab" * 16)
    told = bundle(session.pk, with_content=True)
    assert told["log"]["digest"] == "ab" * 16
    assert told["log"]["purged_at"] == "2026-11-04T02:13:04+00:00"
    assert told["log"]["ranges"]
    assert told["content"]["answer"] == []


def test_an_unknown_session_has_none():
    with pytest.raises(StreamSession.DoesNotExist):
        bundle(StreamSession().pk)


def test_its_download_is_audited(admin_client):
    session = recovered()
    response = admin_client.get(url_of(session, "evidence_json"))
    assert response["Content-Type"] == "application/json"
    assert f"session-K7Q-4MX-{session.pk}.json" in response["Content-Disposition"]
    assert response.json()["sentence"] == bundle(session.pk)["sentence"]
    (said,) = announced()
    assert (said["action"], said["actor"]) == ("evidence.export", "user:admin")
    assert said["data"] == {"reference": "K7Q-4MX", "form": "json", "content": False}


def test_content_takes_a_reason_and_is_audited_as_such(admin_client):
    session = recovered()
    url = url_of(session, "evidence_json")
    assert admin_client.post(url, {"reason": "no"}).status_code == 403
    assert announced() == []
    assert admin_client.post(url, REASON).json()["masked"] is False
    assert [row["action"] for row in announced()] == ["content.view", "evidence.export"]
    assert announced()[1]["data"]["content"] is True


def test_the_page_to_print_is_masked_too(admin_client):
    session = recovered()
    page = admin_client.get(url_of(session, "evidence"))
    assert not any(secret in page.text for secret in SECRETS)
    assert "ran out of memory after token 412" in page.text
    assert '<svg class="unbroken-timeline" viewBox' in page.text
    assert "session_print.css" in page.text
    assert 'id="header"' not in page.text
    assert [row["data"]["form"] for row in announced()] == ["page"]


@pytest.mark.parametrize("permissions", [("view_streamsession",), ("export_sessions",)])
def test_it_takes_two_permissions(client, django_user_model, permissions):
    session = recovered()
    user = django_user_model.objects.create_user("pat", password="x", is_staff=True)
    wanted = ("all_tenants", *permissions)
    user.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    client.force_login(user)
    for name in ("evidence", "evidence_json"):
        assert client.get(url_of(session, name)).status_code == 403
    assert announced() == []


@pytest.mark.parametrize("sees_money", [True, False])
def test_amounts_are_for_who_may_see_them(client, django_user_model, sees_money):
    session = recovered()
    add_plan(output="5000")
    OutboxMessage.objects.create(session_id=session.pk, kind="session_ended", created_at=at(15_000))
    settle_due()
    user = django_user_model.objects.create_user("pat", password="x", is_staff=True)
    wanted = {"all_tenants", "view_streamsession", "export_sessions"}
    if sees_money:
        wanted |= {"view_usagerecord", "view_ledgerentry"}
    user.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    client.force_login(user)
    told = client.get(url_of(session, "evidence_json")).json()
    assert (told["billing"] is not None) is sees_money
    assert "session.interrupted" in {row["action"] for row in told["audit"]}
    pages = [client.get(url_of(session, name)).text for name in ("change", "evidence")]
    for text in (json.dumps(told), *pages):
        assert (AMOUNT in text) is sees_money
    assert ("settlement" in {row["action"] for row in told["audit"]}) is sees_money
    assert "and was charged for 733." in pages[0]  # tokens are no money
