"""What is done to sessions from the admin: asked first, for several at once, by who may."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from streaming.admin import session_tools
from streaming.core.ids import uuid7
from streaming.models import SessionFence, SessionReview, StreamSession, Tenant, TenantMember
from tests.admin.test_operations import act
from tests.desk.staff import ALL, deed, logged_in, member, told
from tests.tasks.rows import add_session, living_gateway

pytestmark = pytest.mark.django_db

DEEDS = {
    "stop": "stop_session", "continue": "continue_session", "take": "review_session",
    "assign": "review_session", "review": "review_session", "reopen": "review_session",
    "purge": "purge_content",
}  # fmt: skip
SAID = {"review": {"note": "out of memory", "ticket": "T-1"}}


def waiting(**columns) -> StreamSession:
    """Suspended, and somebody has to look into it."""
    until = timezone.now() + timedelta(minutes=5)
    columns = {"state": "suspended", "resume_until": until, "review": "needed", **columns}
    return add_session(None, 3, **columns)


def for_deed(name: str) -> StreamSession:
    """A session to which it can be done."""
    session = waiting()
    if name == "purge":
        StreamSession.objects.filter(pk=session.pk).update(
            state="completed", ended_at=timezone.now()
        )
    if name == "reopen":
        SessionReview.objects.create(session=session, reviewed_by="user:sam")
        StreamSession.objects.filter(pk=session.pk).update(review="reviewed")
    return session


def page_of(session: StreamSession) -> str:
    return reverse("admin:streaming_streamsession_change", args=[session.pk])


@pytest.mark.parametrize("name", DEEDS)
def test_each_asks_first_and_is_then_done_once(name):
    session = for_deed(name)
    pat = member("pat", ["view_streamsession", "review_session", DEEDS[name], ALL])
    client = logged_in(pat)
    assert deed(name, session).replace("&", "&amp;") in client.get(page_of(session)).text
    asked = client.get(deed(name, session))
    assert session.reference in asked.text
    assert told() == []
    said = {"assignee": pat.pk} if name == "assign" else SAID.get(name, {})
    for _ in range(2):  # the button is pressed twice
        done = client.post(deed(name, session), said, follow=True)
        assert done.redirect_chain[-1][0] == page_of(session)
    ((action, actor, subject),) = told()
    assert (actor, subject) == ("user:pat", f"session:{session.pk}")
    assert action.startswith("session.")
    assert LogEntry.objects.count() == 1
    # What cannot be done (again) is said on the page that asks, which has no button then.
    asked = client.get(deed(name, session)).text
    assert name in ("assign", "take") or "Nothing: " in asked


@pytest.mark.parametrize("name", DEEDS)
def test_each_takes_its_permission(name):
    session = for_deed(name)
    others = {"stop_session", "continue_session", "review_session", "purge_content"} - {DEEDS[name]}
    client = logged_in(member("pat", ["view_streamsession", ALL, *others]))
    assert f"/do/{name}/" not in client.get(page_of(session)).text
    assert client.get(deed(name, session)).status_code == 403
    assert client.post(deed(name, session), SAID["review"]).status_code == 403
    act(client, "streamsession", f"{name}_selected", session)
    assert told() == []


@pytest.mark.parametrize("name", DEEDS)
def test_the_list_leads_to_the_same_page(name):
    sessions = [for_deed(name) for _ in range(2)]
    client = logged_in(
        member("pat", ["view_streamsession", "review_session", DEEDS[name], ALL])
    )  # fmt: skip
    asked = act(client, "streamsession", f"{name}_selected", *sessions)
    assert all(session.reference in asked.text for session in sessions)
    assert "2 sessions" in asked.text


def test_several_are_done_each_for_itself():
    first, second = waiting(), waiting()
    ended = waiting(state="completed", ended_at=timezone.now())
    client = logged_in(member("pat", ["view_streamsession", "stop_session", ALL]))
    asked = client.get(deed("stop", first, ended, second)).text
    assert "ends at once" in asked
    assert "Nothing: " in asked
    done = client.post(deed("stop", first, ended, second), follow=True)
    assert "has ended" in done.text
    assert {subject for _, _, subject in told()} == {
        f"session:{first.pk}", f"session:{second.pk}",
    }  # fmt: skip
    assert StreamSession.objects.filter(state="stopped").count() == 2


def test_no_more_are_chosen_than_a_page_can_show(monkeypatch):
    monkeypatch.setattr(session_tools, "MOST_AT_ONCE", 1)
    client = logged_in(member("pat", ["view_streamsession", "stop_session", ALL]))
    answer = act(client, "streamsession", "stop_selected", waiting(), waiting())
    assert "sessions at once" in answer.text
    assert "/do/stop/" not in (answer.redirect_chain or [["", 0]])[-1][0]


def test_what_cannot_be_done_is_not_offered():
    with living_gateway() as gateway:
        live = add_session(gateway, 3)
        ended = waiting(state="completed", ended_at=timezone.now())
        client = logged_in(
            member("pat", ["view_streamsession", "stop_session", "continue_session", ALL])
        )
        assert "/do/stop/" in client.get(page_of(live)).text
        assert "/do/continue/" not in client.get(page_of(live)).text
        assert "/do/" not in client.get(page_of(ended)).text
        assert client.post(deed("continue", live), follow=True).status_code == 200
        assert not SessionFence.objects.filter(continue_requested=True).exists()


@pytest.mark.parametrize("wrong", ["?session=x", ""])
def test_nothing_and_nonsense_are_not_found(wrong):
    client = logged_in(member("pat", ["view_streamsession", "stop_session", ALL]))
    url = reverse("admin:streaming_streamsession_do", args=["stop"])
    assert client.get(f"{url}{wrong}").status_code == 404
    assert client.get(deed("stop", uuid7())).status_code == 404
    assert client.get(url.replace("stop", "burn")).status_code == 404


def test_what_was_found_has_to_be_said():
    session = waiting()
    client = logged_in(member("pat", ["view_streamsession", "review_session", ALL]))
    answer = client.post(deed("review", session), {"note": " ", "ticket": ""})
    assert "Say what was found" in answer.text
    assert not SessionReview.objects.exists()


def test_a_note_is_shown_as_it_was_written_and_does_nothing():
    session = waiting()
    script = "<script>alert('note')</script>"
    client = logged_in(member("pat", ["view_streamsession", "review_session", ALL]))
    client.post(deed("review", session), {"note": script, "ticket": script})
    for url in (page_of(session), deed("reopen", session)):
        assert script not in client.get(url).text


def test_somebody_elses_tenant_is_not_reached_by_an_address():
    session = waiting()
    globex = Tenant.objects.create(name="globex")
    theirs = waiting(tenant=globex)
    pat = member("pat", ["view_streamsession", "stop_session", "review_session"])
    TenantMember.objects.create(user=pat, tenant=globex)
    client = logged_in(pat)
    assert client.get(deed("stop", session)).status_code == 404
    both = client.get(deed("stop", session, theirs))
    assert theirs.reference in both.text
    assert session.reference not in both.text
    client.post(deed("stop", session, theirs))
    assert [subject for _, _, subject in told()] == [f"session:{theirs.pk}"]


def test_who_is_asked_to_look_into_a_session_may_see_it():
    session = waiting()
    globex = Tenant.objects.create(name="globex")
    stranger = member("stranger", ["review_session"])
    TenantMember.objects.create(user=stranger, tenant=globex)
    colleague = member("colleague", ["review_session"])
    TenantMember.objects.create(user=colleague, tenant=session.tenant)
    lead = logged_in(member("lead", ["view_streamsession", "review_session", ALL]))
    answer = lead.post(deed("assign", session), {"assignee": stranger.pk}, follow=True)
    assert "does not see the tenant" in answer.text
    assert told() == []
    # Who sees one tenant is shown its people, and no others.
    few = member("few", ["view_streamsession", "review_session"])
    TenantMember.objects.create(user=few, tenant=session.tenant)
    names = logged_in(few).get(deed("assign", session)).text
    assert "colleague" in names
    assert "stranger" not in names
    assert ">lead<" not in names
