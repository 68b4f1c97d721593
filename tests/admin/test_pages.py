"""Every page of the admin opens, escapes what strangers wrote, and keeps content to itself."""

from __future__ import annotations

import json

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.urls import reverse

from streaming.core.ids import uuid7
from streaming.models import SessionFence, TokenCheckpoint
from tests.admin.rows import QUESTION, SCRIPT, add_session
from tests.admin.test_content import reveal

pytestmark = pytest.mark.django_db

READ_ONLY = [
    "streamsession", "attempt", "tokencheckpoint", "sessionevent", "gatewayinstance",
    "outboxmessage", "nodeevent", "incident", "taskrun",
]  # fmt: skip
EDITABLE = ["inferencenode", "modelpolicy", "tenant", "apikey", "modelalias"]
CONTENT = (QUESTION, "secret", "of course.")


@pytest.fixture
def support(client, django_user_model):
    """Somebody who may see all tables, and no content."""
    user = django_user_model.objects.create_user("support", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__regex="^(view_|all_tenants)"))
    client.force_login(user)
    return client


def page(client, model: str, name: str = "changelist", *arguments, **query) -> str:
    response = client.get(reverse(f"admin:streaming_{model}_{name}", args=arguments), query)
    assert response.status_code == 200
    return response.content.decode()


def first_id(model: str):
    return apps.get_model("streaming", model).objects.values_list("pk", flat=True)[0]


def list_and_detail(client, model: str, session) -> tuple[str, str]:
    # Rows of the log are shown to who says of which session.
    query = {"q": str(session.pk)} if model == "tokencheckpoint" else {}
    return page(client, model, **query), page(client, model, "change", first_id(model), **query)


@pytest.mark.parametrize("model", READ_ONLY + EDITABLE)
def test_list_and_detail_open_and_escape(admin_client, support, model):
    session = add_session()
    for client in (admin_client, support):
        for html in list_and_detail(client, model, session):
            assert SCRIPT not in html
            assert "<script>alert" not in html


@pytest.mark.parametrize("model", READ_ONLY)
def test_what_gateways_write_cannot_be_changed_even_by_a_superuser(admin_client, model):
    add_session()
    pk = first_id(model)
    assert admin_client.get(reverse(f"admin:streaming_{model}_add")).status_code == 403
    for name in ("change", "delete"):
        url = reverse(f"admin:streaming_{model}_{name}", args=[pk])
        assert admin_client.post(url, {"post": "yes"}).status_code == 403
    assert apps.get_model("streaming", model).objects.filter(pk=pk).exists()


def test_no_page_shows_content_by_itself(admin_client, support):
    session = add_session()
    for client in (admin_client, support):
        for model in READ_ONLY:
            for html in list_and_detail(client, model, session):
                assert not any(content in html for content in CONTENT)


@pytest.mark.parametrize(
    "body",
    [b"not json", b"\xff\x00", json.dumps({"messages": ["\ud800 \x00"]}).encode(), b"[" * 50],
)
def test_a_strange_request_does_not_break_the_page(admin_client, body):
    session = add_session(request=body)
    assert reveal(admin_client, session).status_code == 200


def test_a_session_whose_rows_are_gone_still_has_its_page(admin_client):
    session = add_session()
    SessionFence.objects.all().delete()
    TokenCheckpoint.objects.all().delete()
    page(admin_client, "streamsession", "change", session.pk)
    assert reveal(admin_client, session).status_code == 200


@pytest.mark.parametrize(
    ("find", "found"),
    [
        ("K7Q-4MX", True),
        ("k7q4mx", True),
        ("K7Q", True),
        ("7Q-4MX", False),
        ("req-1", True),
        ("req-2", False),
        ("visitor", True),
        ("isitor", False),
        ("{id}", True),
        ("chatcmpl-{hex}", True),
        ("{start}", True),
        ("{other}", False),
        ("%", False),
    ],
)
def test_a_session_is_found_by_the_beginning_of_what_people_hold(admin_client, find, found):
    session = add_session(end_user="visitor-1")
    term = find.format(id=session.pk, hex=session.pk.hex, start=str(session.pk)[:13], other=uuid7())
    html = page(admin_client, "streamsession", q=term)
    assert (str(session.pk) in html) is found


@pytest.mark.parametrize("model", ["attempt", "tokencheckpoint", "sessionevent", "outboxmessage"])
def test_other_tables_are_searched_by_session(admin_client, model):
    session = add_session()
    link = reverse("admin:streaming_streamsession_change", args=[session.pk])
    assert link in page(admin_client, model, q=str(session.pk))
    for term in (str(uuid7()), "nonsense"):
        assert link not in page(admin_client, model, q=term)


def test_of_the_log_nothing_is_shown_to_who_does_not_say_of_which_session(admin_client):
    session = add_session()
    assert str(session.pk) not in page(admin_client, "tokencheckpoint")
    url = reverse("admin:streaming_tokencheckpoint_change", args=[first_id("tokencheckpoint")])
    assert admin_client.get(url).status_code == 302
    listed = page(admin_client, "tokencheckpoint", q=str(session.pk))
    assert f"{url}?_changelist_filters=q%3D{session.pk}" in listed
    opened = admin_client.get(url, {"_changelist_filters": f"q={session.pk}"})
    assert opened.status_code == 200


def test_sessions_are_filtered(admin_client):
    session = add_session()
    assert str(session.pk) in page(admin_client, "streamsession", state__exact="completed")
    assert str(session.pk) not in page(admin_client, "streamsession", state__exact="failed")


def test_the_list_of_sessions_costs_the_same_however_long(
    admin_client, django_assert_max_num_queries
):
    for _ in range(10):
        add_session()
    with django_assert_max_num_queries(9):
        html = page(admin_client, "streamsession")
    assert html.count(">K7Q-4MX</a>") == 10


def test_strangers_see_nothing(client):
    add_session()
    for model in READ_ONLY + EDITABLE:
        response = client.get(reverse(f"admin:streaming_{model}_changelist"))
        assert response.status_code == 302
        assert "/admin/login/" in response["Location"]
