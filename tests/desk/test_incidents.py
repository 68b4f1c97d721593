"""Incidents: their figures are a plain count's, their page is bounded, and people may close some."""

from __future__ import annotations

import html as html_lib
import re
import statistics
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from streaming.models import (
    Attempt,
    Incident,
    InferenceNode,
    NodeEvent,
    SessionReview,
    StreamSession,
    Tenant,
)
from streaming.services import incidents
from streaming.services.incident_figures import figures_of, groups_of, sessions_of
from streaming.services.refused import Refused
from tests.desk.staff import ALL, hit, incident_deed, interruption, logged_in, member, told
from tests.tasks.rows import add_attempt

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert('end user')</script>"
SUPPORT = ["view_incident", "view_streamsession", "review_session", ALL]


def page_of(incident: Incident) -> str:
    return reverse("admin:streaming_incident_change", args=[incident.pk])


def mixed() -> tuple[Incident, list[StreamSession]]:
    """Two tenants, two models, three nodes; every outcome; some readers twice."""
    began = timezone.now() - timedelta(minutes=10)
    incident = interruption(opened_at=began, last_at=began + timedelta(seconds=3))
    globex = Tenant.objects.create(name="globex")
    sessions = []
    for number in range(24):
        outcome = ("recovered", "recovered", "suspended", "lost")[number % 4]
        session = hit(
            incident,
            outcome=outcome,
            noticed=outcome == "lost" or number % 8 == 1,
            gap_ms=None if outcome in ("lost", "suspended") else number * 17.5,
            end_user="" if number % 5 == 0 else f"user-{number % 7}",
            model="large" if number % 3 == 0 else "small",
            interrupted_node=f"gpu-{number % 3}",
            interrupted_at=began + timedelta(seconds=number % 4),
            review=("needed", "assigned", "reviewed", "")[number % 4],
            **({"tenant": globex} if number % 2 else {}),
        )
        for attempt in (1, 2):
            add_attempt(session, number=attempt, discarded_tokens=number, repeated_tokens=attempt)
        sessions.append(session)
    hit(interruption(subject="another"))
    return incident, sessions


def test_figures_are_those_of_a_plain_count():
    incident, sessions = mixed()
    found = figures_of(sessions_of(incident))
    gaps = [one.gap_ms for one in sessions if one.gap_ms is not None]
    attempts = Attempt.objects.filter(session__in=sessions)
    assert found.sessions == len(sessions)
    assert found.readers == len(
        {(one.tenant_id, one.end_user) if one.end_user else one.pk for one in sessions}
    )
    assert found.noticed == sum(one.noticed for one in sessions)
    for outcome in ("recovered", "suspended", "lost"):
        assert getattr(found, outcome) == sum(one.outcome == outcome for one in sessions)
    assert found.quiet == sum(one.outcome == "recovered" and not one.noticed for one in sessions)
    assert found.gap_p50 == pytest.approx(statistics.median(gaps))
    percentiles = statistics.quantiles(gaps, n=20, method="inclusive")
    assert found.gap_p95 == pytest.approx(percentiles[18])
    assert found.first_at == min(one.interrupted_at for one in sessions)
    assert found.last_at == max(one.interrupted_at for one in sessions)
    assert (found.waiting, found.assigned, found.reviewed) == (6, 6, 6)
    assert found.discarded == sum(one.discarded_tokens for one in attempts)
    assert found.wasted == sum(one.discarded_tokens + one.repeated_tokens for one in attempts)
    for column in ("tenant_id", "model", "interrupted_node"):
        groups = groups_of(sessions_of(incident), column)
        assert [one.sessions for one in groups] == sorted(
            (one.sessions for one in groups), reverse=True
        )
        for group in groups:
            own = [one for one in sessions if getattr(one, column) == group.name]
            assert (group.sessions, group.noticed, group.lost) == (
                len(own), sum(one.noticed for one in own), sum(one.outcome == "lost" for one in own),
            )  # fmt: skip


def test_the_page_of_an_interruption():
    incident, sessions = mixed()
    node = InferenceNode.objects.create(name="gpu-1", dialect="vllm", base_url="http://gpu-1:8000")
    at = incident.opened_at
    for kind, moment in (("down", at), ("long_before", at - timedelta(hours=1))):
        NodeEvent.objects.create(node=node, node_name="gpu-1", at=moment, kind=kind, data={})
    StreamSession.objects.filter(pk=sessions[0].pk).update(end_user=SCRIPT)
    client = logged_in(member("pat", SUPPORT))
    html = client.get(page_of(incident)).text
    assert "<dt>Sessions hit</dt><dd>24</dd>" in html
    assert reverse("admin:streaming_inferencenode_change", args=[node.pk]) in html
    assert "<strong>down</strong>" in html
    assert "long_before" not in html
    assert SCRIPT not in html
    assert html_lib.escape(SCRIPT) in html
    assert all(one.reference in html for one in sessions)
    lost = client.get(page_of(incident), {"only": "lost"}).text
    assert {one.reference for one in sessions if one.reference in lost} == {
        one.reference for one in sessions if one.outcome == "lost"
    }
    for nonsense in ({"only": "x", "p": "y"}, {"p": "-3", "tenant": "x"}, {"tenant": "9" * 30}):
        assert client.get(page_of(incident), nonsense).status_code == 200


def test_a_page_of_sessions_at_a_time_in_as_many_queries_as_ever(monkeypatch):
    monkeypatch.setattr("streaming.admin.incident_page.PAGE", 10)
    incident, sessions = mixed()
    client = logged_in(member("pat", SUPPORT))
    client.get(page_of(incident))
    with CaptureQueriesContext(connection) as few:
        first = client.get(page_of(incident)).text
    shown = [one.reference for one in sessions if one.reference in first]
    for page in (2, 3):
        html = client.get(page_of(incident), {"p": page}).text
        shown += [one.reference for one in sessions if one.reference in html]
    assert sorted(shown) == sorted(one.reference for one in sessions)
    assert "Later ones" not in html
    for _ in range(30):
        hit(incident)
    with CaptureQueriesContext(connection) as many:
        client.get(page_of(incident))
    assert len(many) == len(few)


def test_the_text_for_a_customer_has_its_own_figures_and_nothing_of_the_inside():
    incident, _ = mixed()
    client = logged_in(member("pat", SUPPORT))
    acme = Tenant.objects.get(name="acme")

    def text(**query) -> str:
        html = client.get(page_of(incident), query).text
        found = re.search(r"<textarea[^>]*>(.*?)</textarea>", html, re.DOTALL)
        assert found is not None
        return html_lib.unescape(found[1])

    assert "24 answers were affected" in text()
    assert "12 of your answers were affected" in text(tenant=acme.pk)
    for inside in ("gpu-", "globex", "acme", "engine"):
        assert inside not in text()


def test_all_of_it_is_assigned_and_reviewed_from_its_page():
    incident, _ = mixed()
    pat = member("pat", SUPPORT)
    client = logged_in(pat)
    html = client.get(page_of(incident)).text
    for name in ("take", "assign", "review"):
        assert incident_deed(name, incident) in html
        assert client.get(incident_deed(name, incident)).status_code == 200
    done = client.post(incident_deed("take", incident), follow=True)
    assert "looks into 6 sessions" in done.text
    assert SessionReview.objects.filter(assignee=pat).count() == 6
    refused = client.post(incident_deed("review", incident), {"note": "", "ticket": ""})
    assert "Say what was found" in refused.text
    client.post(incident_deed("review", incident), {"note": "one cause", "ticket": "T-7"})
    assert StreamSession.objects.filter(incident=incident, review="reviewed").count() == 18
    assert told()[-1][0] == "incident.review"


def test_who_sees_few_tenants_is_not_assigned_all_of_it():
    incident, _ = mixed()
    few = member("few", ["review_session"])
    client = logged_in(member("pat", SUPPORT))
    answer = client.post(incident_deed("assign", incident), {"assignee": few.pk}, follow=True)
    assert "does not see all tenants" in answer.text
    assert not SessionReview.objects.exists()


def test_what_is_done_to_an_incident_takes_its_permission():
    incident, _ = mixed()
    other = Incident.objects.create(kind="kv_not_reclaimed", subject="gpu-a")
    client = logged_in(member("reader", ["view_incident", ALL]))
    for one, names in ((incident, ("take", "assign", "review")), (other, ("close", "reopen"))):
        assert "/do/" not in client.get(page_of(one)).text
        for name in names:
            assert client.get(incident_deed(name, one)).status_code == 403
            assert client.post(incident_deed(name, one), {"note": "x"}).status_code == 403
    limited = logged_in(member("limited", ["view_incident", "review_session", "change_incident"]))
    assert limited.get(page_of(incident)).status_code in (403, 404)
    assert limited.post(incident_deed("take", incident)).status_code in (403, 404)
    assert told() == []


def test_other_incidents_are_closed_and_reopened():
    incident = Incident.objects.create(kind="kv_not_reclaimed", subject="gpu-a", data={"held": 3})
    client = logged_in(member("op", ["view_incident", "change_incident", ALL]))
    assert incident_deed("close", incident) in client.get(page_of(incident)).text
    assert incident_deed("reopen", incident) not in client.get(page_of(incident)).text
    client.post(incident_deed("close", incident))
    incident.refresh_from_db()
    assert incident.closed_at is not None
    client.post(incident_deed("reopen", incident))
    incident.refresh_from_db()
    assert incident.closed_at is None
    assert [(action, subject) for action, _, subject in told()] == [
        ("incident.close", f"incident:{incident.pk}"),
        ("incident.reopen", f"incident:{incident.pk}"),
    ]
    # An interruption is over when it is.
    session_incident = interruption()
    assert client.post(incident_deed("close", session_incident)).status_code == 404


def test_what_was_opened_again_by_the_machine_is_not_reopened():
    old = Incident.objects.create(kind="k", subject="s", closed_at=timezone.now())
    Incident.objects.create(kind="k", subject="s")
    with pytest.raises(Refused, match="newer one"):
        incidents.reopen_by_hand(old.pk, by="user:pat")
    with pytest.raises(Refused, match="closed already"):
        incidents.close_by_hand(old.pk, by="user:pat")
    with pytest.raises(Refused, match="no such"):
        incidents.close_by_hand(0, by="user:pat")
    assert told() == []
