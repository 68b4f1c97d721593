"""The page of one session: what it says, what it costs, and that nothing on it does harm."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from streaming.models import Attempt, SessionEvent, SessionFence, StreamSession, TokenCheckpoint
from tests.admin.cases import add_attempt, add_course, add_log, at, recovered

pytestmark = pytest.mark.django_db

REASON = {"reason": "Ticket 4711: the answer stopped in the middle."}


def url_of(session: StreamSession, name: str = "change") -> str:
    return reverse(f"admin:streaming_streamsession_{name}", args=[session.pk])


def read(client: Any, session: StreamSession) -> str:
    response = client.get(url_of(session))
    assert response.status_code == 200
    return response.text


class Words(HTMLParser):
    """The text of a page as a reader sees it, and what could run in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.running: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "script" and "src" not in names and names.get("type") != "application/json":
            self.running.append(tag)
        self.running += [name for name in names if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.text += f" {' '.join(data.split())}"


def words_of(html: str) -> str:
    return " ".join(Words(html).text.split())


def figure_of(html: str) -> ElementTree.Element:
    start = html.index('<svg class="unbroken-timeline" viewBox="0 0 1000')
    return ElementTree.fromstring(html[start : html.index("</svg>", start) + 6])


def test_it_explains_a_failover(admin_client):
    html = read(admin_client, recovered())
    said = words_of(html)
    assert "Interrupted, and recovered" in said
    assert (
        "The engine gpu-3 ran out of memory after token 412; the answer continued on gpu-1" in said
    )
    assert "the reader received all 733 tokens" in said
    assert "733 tokens stored, 733 delivered: by the reader’s system" in said
    assert "the engine reported an error" in said
    assert "continued from the very tokens the reader has: nothing lost, doubled or changed" in said
    assert "its memory on the engine was freed, and this was verified" in said
    assert "4 more of its streams failed in that moment" in said
    assert "The answer continued on gpu-1 (exact), 37 ms after the failure was noticed." in said
    assert 'id="reference">K7Q-4MX<' in html
    for model in ("inferencenode", "tenant", "gatewayinstance"):
        assert f"/admin/streaming/{model}/" in html


def test_its_picture_is_drawn_and_said_in_a_table(admin_client):
    html = read(admin_client, recovered())
    svg = figure_of(html)
    assert svg.attrib["role"] == "img"
    classes = [element.attrib.get("class", "") for element in svg.iter()]
    assert {"try try-failed", "try try-finished", "gap", "here", "tokens", "delivered"} <= {
        *classes
    }
    said = words_of(html)
    assert "Attempt 2 on gpu-1, continued from the very tokens the reader has" in said
    assert "No tokens for" in said


def test_the_content_is_shown_with_its_seams_once_a_reason_is_given(admin_client):
    session = recovered()
    hidden = read(admin_client, session)
    assert "lighthouse" not in hidden
    assert "word word" not in hidden
    assert "Tried to allocate" not in hidden
    page = admin_client.post(url_of(session, "reveal"), REASON)
    assert "no-store" in page["Cache-Control"]
    said = words_of(page.text)
    assert "user Tell me of the lighthouse." in said
    seam = said.index("continued on gpu-1 from token 413, exact, after")
    before, after = said[:seam], said[seam:]
    answer = before[before.rindex("Answered") :]
    assert answer.count("word") == 412
    assert after[: after.index("Evidence as JSON")].count("word") == 321
    assert "Tried to allocate 2.00 GiB" in said


def test_what_is_sent_to_the_page_itself_changes_nothing(admin_client):
    session = recovered()
    assert admin_client.post(url_of(session), REASON).status_code == 403


def test_a_live_session(admin_client):
    began = timezone.now()
    session = add_course(
        events=[(0, "created", 0, {"protocol": "sessions"})],
        state="recovering", created_at=began,
    )  # fmt: skip
    SessionFence.objects.update(durable_seq=30, sent_seq=30, taken_seq=25)
    add_attempt(
        session, 1, "gpu-1", 0, 900, end_reason="stalled", cause="engine_frozen", reclaim="pending"
    )
    add_attempt(session, 2, "gpu-2", 950, None, kind="failover", seam_grade="exact")
    add_log(session, 1, 1, 30, 100, 800)
    html = read(admin_client, session)
    said = words_of(html)
    assert "It is being recovered now." in said
    assert "30 tokens stored, 25 delivered" in said
    assert "runs still" in said
    assert "try try-failed" in html  # known from the log alone
    assert "its memory on the engine is being freed" in said


def test_a_purged_session_says_so(admin_client):
    session = recovered()
    TokenCheckpoint.objects.all().delete()
    StreamSession.objects.update(request=b"", purged_at=at(86_400_000), log_digest=b"\xab" * 16)
    said = words_of(read(admin_client, session))
    assert "Its content was purged on 2026-11-04" in said
    assert "ab" * 16 in said
    revealed = admin_client.post(url_of(session, "reveal"), REASON)
    assert "It was purged." in words_of(revealed.text)


def test_a_session_without_attempts(admin_client):
    session = add_course(
        state="failed", error_code="no_healthy_node", cause="timeout", ended_at=at(30_000),
        events=[(0, "created", 0, {}), (30_000, "failed", 1, {"cause": "timeout"})],
    )  # fmt: skip
    said = words_of(read(admin_client, session))
    assert "No engine was asked." in said
    assert "Failed: took too long." in said


def test_eight_attempts_with_a_hedge(admin_client):
    session = add_course(tokens=80, ended_at=at(9000), events=[
        (1000, "hedged", 10, {"node": "gpu-9", "silent": "gpu-1", "silent_ms": 812}),
        (1200, "hedge_lost", 10, {"node": "gpu-9", "silent": "gpu-1"}),
    ])  # fmt: skip
    for n in range(1, 9):
        last = n == 8
        add_attempt(
            session, n, f"gpu-{n}", n * 1000, n * 1000 + 900, first=n * 1000 + 50,
            first_seq=n * 10 - 9, last_seq=n * 10, kind="first" if n == 1 else "failover",
            seam_grade="" if n == 1 else "exact", end_reason="finished" if last else "connection_reset",
        )  # fmt: skip
        add_log(session, n, n * 10 - 9, n * 10, n * 1000 + 50, n * 1000 + 890)
    add_attempt(session, 9, "gpu-9", 1010, 1200, kind="hedge", end_reason="overtaken")
    html = read(admin_client, session)
    assert (
        len([e for e in figure_of(html).iter() if e.attrib.get("class", "").startswith("join ")])
        == 7
    )
    said = words_of(html)
    assert "Node gpu-1 was silent for 812 ms: tried on gpu-9 as well." in said
    assert "beside one that had gone silent: the faster goes on" in said
    assert "another attempt was faster" in said


def test_rows_of_other_versions_are_shown_as_they_are(admin_client):
    session = add_course(
        state="melted", protocol="pigeon", cause="solar_flare", ended_at=at(500),
        evidence=["not", "a dict"], tokens=3,
        events=[
            (1, "teleported", 0, {"via": "warp"}), (2, "recovering", 1, {"odd": True}),
            (3, "taken_over", 1, {}), (4, "reader_left", 1, {}),
        ],
    )  # fmt: skip
    add_attempt(
        session, 1, "gpu-1", 0, 400, kind="whim", seam_grade="glued", end_reason="vanished",
        cause="solar_flare", evidence=[1], reclaim="eaten",
    )  # fmt: skip
    SessionFence.objects.all().delete()
    said = words_of(read(admin_client, session))
    for stored in ("melted", "teleported: via: warp", "recovering: odd: True", "taken_over",
                   "reader_left", "whim", "glued", "vanished", "Solar flare", "eaten", "pigeon"):  # fmt: skip
        assert stored in said, stored


def test_events_are_capped_with_a_note(admin_client):
    session = add_course(events=[(n, f"kind-{n:03}", n, {}) for n in range(320)])
    said = words_of(read(admin_client, session))
    assert "the latest; 20 events before them are not shown" in said
    assert "kind-319" in said
    assert "kind-020" in said
    assert "kind-019" not in said


def queries_of(client: Any, session: StreamSession) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        read(client, session)
    return len(captured)


def test_it_costs_the_same_whatever_has_happened(admin_client):
    short = add_course(ended_at=at(10))
    long = recovered()
    for n in range(3, 30):
        add_attempt(long, n, f"gpu-{n}", 15_000 + n, 15_001 + n, end_reason="stalled")
    SessionEvent.objects.bulk_create(
        SessionEvent(session=long, at=at(n), kind="recovering", seq=n, data={}) for n in range(500)
    )
    add_log(long, 2, 735, 1900, 15_000, 16_000, rows=600)
    read(admin_client, short)  # what is asked once a process
    assert queries_of(admin_client, short) == queries_of(admin_client, long) <= 22


def test_its_log_is_sampled(admin_client):
    session = add_course(tokens=3000, ended_at=at(60_000))
    add_attempt(
        session, 1, "gpu-1", 0, 60_000, first=50, first_seq=1, last_seq=3000, end_reason="finished"
    )
    add_log(session, 1, 1, 3000, 50, 59_000, rows=1000)
    svg = figure_of(read(admin_client, session))
    (line,) = [e for e in svg.iter() if e.attrib.get("class") == "tokens"]
    assert 100 <= len(line.attrib["points"].split()) <= 202


def test_who_may_not_see_nodes_and_tenants_has_no_links_to_them(client, django_user_model):
    session = recovered()
    user = django_user_model.objects.create_user("support", password="x", is_staff=True)
    wanted = ("view_streamsession", "all_tenants")
    user.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    client.force_login(user)
    html = read(client, session)
    assert "gpu-3" in html
    for model in ("inferencenode", "tenant", "gatewayinstance", "incident", "apikey"):
        assert f"/admin/streaming/{model}/" not in html
    assert "Evidence as JSON" not in html
    assert "Show the content" not in html


def test_unknown_and_strange_ids_lead_back_to_the_list(admin_client):
    for strange in ("00000000-0000-7000-8000-000000000000", "nonsense", "_00"):
        url = reverse("admin:streaming_streamsession_change", args=[strange])
        assert admin_client.get(url).status_code == 302


EVIL = "<script>alert(1)</script>\u202e<img src=x onerror=alert(2)>\u2066\x1b[31m\ufffd\u200b</svg></div>"


def test_a_megabyte_of_hostile_text_does_nothing(admin_client):
    body = {"messages": [{"role": EVIL, "content": EVIL * 12_000}], EVIL: EVIL}
    session = add_course(
        tokens=20, ended_at=at(999), end_user=EVIL[:120], model=EVIL, model_requested=EVIL * 2,
        request_id=EVIL[:60], finish_reason=EVIL[:16], error_code=EVIL[:40], protocol=EVIL[:12],
        cause=EVIL[:24], request=json.dumps(body).encode(), evidence={"because": EVIL, "said": EVIL, EVIL: EVIL},
        events=[(50, EVIL[:40], 1, {EVIL: EVIL}), (60, "recovering", 1, {"node": EVIL, "cause": EVIL})],
    )  # fmt: skip
    for n in (1, 2):
        Attempt.objects.create(
            session=session, number=n, epoch=1, node_name=EVIL[:100], engine_request_id="x",
            started_at=at(n * 100), ended_at=at(n * 100 + 90), first_token_at=at(n * 100 + 20),
            first_seq=n * 10 - 9, last_seq=n * 10, end_reason=EVIL[:24], end_detail=EVIL * 4,
            cause=EVIL[:24], seam_grade=EVIL[:12], seam_note=EVIL, kind=EVIL[:10],
            evidence={"because": EVIL, EVIL: EVIL},
        )  # fmt: skip
        add_log(session, n, n * 10 - 9, n * 10, n * 100 + 20, n * 100 + 80, text=EVIL * 600)
    ours = Words(read(admin_client, recovered()))
    for response in (
        admin_client.get(url_of(session)),
        admin_client.get(url_of(session, "evidence")),
        admin_client.post(url_of(session, "reveal"), REASON),
    ):
        assert response.status_code == 200
        html = response.text
        assert not set(html) & set("\u202e\u2066\x1b\u200b")
        page = Words(html)
        assert page.running == (ours.running if "object-tools" in html else [])
        assert "<script>alert(1)</script>" in page.text
        assert "<img" not in html.split("<main>")[-1].split('id="content-main"')[-1]
        figure_of(html)
        assert len(html) < 3_000_000
    assert "characters are not shown" in page.text
    assert "continued on" in page.text
