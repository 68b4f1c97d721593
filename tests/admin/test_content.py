"""Content is shown to who may see it and says why, once, and never before that is audited."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from streaming.models import OutboxMessage, StreamSession, Tenant
from tests.admin.rows import ANSWER, QUESTION, SCRIPT, add_session

pytestmark = pytest.mark.django_db

REASON = "Ticket 4711: the answer stopped in the middle."
SHOWN = ("&lt;b&gt;secret&lt;/b&gt; of the lighthouse", "It is &lt;script&gt;", ", of course.")
CONTENT = ("lighthouse", "of course.", "<script>alert", "secret")


def address(session: StreamSession) -> str:
    return reverse("admin:streaming_streamsession_change", args=[session.pk])


def reveal(client: Any, session: StreamSession, reason: str = REASON) -> Any:
    """Ask for the content of a session on its page."""
    url = reverse("admin:streaming_streamsession_reveal", args=[session.pk])
    return client.post(url, {"reason": reason})


def views() -> list[dict[str, Any]]:
    """What was announced of content that was seen."""
    rows = OutboxMessage.objects.filter(kind="audit").values_list("data", flat=True)
    return [row for row in rows if row["action"] == "content.view"]


@pytest.fixture
def staff(client, django_user_model):
    """Log in as somebody with these permissions on all tenants."""

    def log_in(*permissions: str) -> Any:
        user = django_user_model.objects.create_user("pat", password="x", is_staff=True)
        wanted = {"view_streamsession", "view_attempt", "all_tenants", *permissions}
        user.user_permissions.set(Permission.objects.filter(codename__in=wanted))
        client.force_login(user)
        return client

    return log_in


def test_superusers_too_have_to_ask(admin_client):
    session = add_session()
    page = admin_client.get(address(session))
    assert not any(content in page.text for content in CONTENT)
    assert "Show the content, this once" in page.text
    assert views() == []


def test_the_answer_to_a_reason_shows_it_once(admin_client):
    session = add_session()
    page = reveal(admin_client, session)
    assert page.status_code == 200
    assert all(content in page.text for content in SHOWN)
    assert "<script>alert" not in page.text
    assert "no-store" in page["Cache-Control"]  # as of every page of the admin
    assert "lighthouse" not in admin_client.get(address(session)).text
    (view,) = views()
    assert (view["actor"], view["subject"]) == ("user:admin", f"session:{session.pk}")
    assert view["tenant_id"] == session.tenant_id
    assert view["data"] == {"reference": "K7Q-4MX", "reason": REASON}
    assert not any(content in json.dumps(view) for content in (QUESTION, ANSWER))


@pytest.mark.parametrize(
    "reason", ["", "because", "x" * 301, " " * 20, "a   " * 3, "\u200b" * 12, "." * 12]
)
def test_a_reason_that_says_nothing_shows_nothing(admin_client, reason):
    session = add_session()
    page = reveal(admin_client, session, reason)
    assert page.status_code == 200
    assert not any(content in page.text for content in CONTENT)
    assert 'class="errorlist"' in page.text
    assert views() == []


def test_it_is_not_shown_when_it_cannot_be_audited(admin_client, monkeypatch):
    session = add_session()

    def fail(*arguments: Any, **data: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr("streaming.admin.content.audit.announce", fail)
    with pytest.raises(ConnectionError):
        reveal(admin_client, session)


@pytest.mark.parametrize(
    ("permissions", "allowed", "shown"),
    [
        (["reveal_content"], False, True),
        (["review_session"], True, True),
        (["review_session"], False, False),
        ([], True, False),  # of finance, say
    ],
)
def test_who_may_see_it(staff, permissions, allowed, shown):
    session = add_session()
    Tenant.objects.update(support_sees_content=allowed)
    client = staff(*permissions)
    assert ("Show the content, this once" in client.get(address(session)).text) is shown
    page = reveal(client, session)
    assert page.status_code == (200 if shown else 403)
    assert ("lighthouse" in page.text) is shown
    assert len(views()) == shown


def test_what_the_engine_said_is_hidden_with_it(admin_client):
    session = add_session()
    said = "&lt;script&gt;alert(&#x27;end user&#x27;)&lt;/script&gt;"
    assert str(SCRIPT) in session.evidence["said"]
    attempt = session.attempts.get(number=1)
    hidden = [
        admin_client.get(reverse("admin:streaming_attempt_change", args=[attempt.pk])).text,
        admin_client.get(address(session)).text.replace("end_user", ""),
    ]
    assert said not in hidden[0]
    assert f"it said “{said}" not in hidden[1]
    assert hidden[1].count("the engine’s words may quote content") == 2
    assert f"it said “{said}" in reveal(admin_client, session).text
